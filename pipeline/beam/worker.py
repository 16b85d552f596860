"""A worker process of the local runner: Beam's own, if it reaches its launcher.

Beam waits without end for a worker that never calls back, such as one whose calls go
astray in a proxy. This one gives up in time, and says so where its launcher looks.
"""

import os
import sys
from pathlib import Path

import grpc
from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.worker import sdk_worker_main
from google.protobuf import text_format

# Set by the launcher: where to say that it was not reached, and after which time.
_UNREACHED, _TIMEOUT_S = "VAST_WORKER_UNREACHED", "VAST_WORKER_TIMEOUT_S"
# Set by Beam.
_CONTROL = "CONTROL_API_SERVICE_DESCRIPTOR"


def main() -> int:
    """Runs the worker.

    Returns:
        Exit code; 0 as well where the launcher was not reached, for its file says it.
    """
    there = endpoints_pb2.ApiServiceDescriptor()
    text_format.Parse(os.environ[_CONTROL], there)
    with grpc.insecure_channel(there.url) as channel:
        try:
            timeout_s = float(os.environ[_TIMEOUT_S])
            grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            Path(os.environ[_UNREACHED]).write_text(there.url)
            return 0
    sdk_worker_main.main(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
