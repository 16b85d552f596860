"""A worker process of the local runner, which tells if it cannot reach its launcher.

Beam waits forever for a worker that never calls back, for example because a proxy takes
its calls. This program gives up after a timeout and writes a file, which the launcher
(`runners`) looks for. Otherwise it runs Beam's own worker.
"""

import os
import sys
from pathlib import Path

import grpc
from apache_beam.portability.api import endpoints_pb2
from apache_beam.runners.worker import sdk_worker_main
from google.protobuf import text_format

# Variables that the launcher sets: the file to write if the launcher cannot be reached,
# and the seconds to try.
_UNREACHED, _TIMEOUT_S = "VAST_WORKER_UNREACHED", "VAST_WORKER_TIMEOUT_S"
# Variable that Beam sets: the endpoint of the launcher.
_CONTROL = "CONTROL_API_SERVICE_DESCRIPTOR"


def main() -> int:
    """Runs the worker.

    Returns:
        Exit code 0, also if the launcher was not reached, since the file reports that.
    """
    launcher = endpoints_pb2.ApiServiceDescriptor()
    text_format.Parse(os.environ[_CONTROL], launcher)
    with grpc.insecure_channel(launcher.url) as channel:
        try:
            timeout_s = float(os.environ[_TIMEOUT_S])
            grpc.channel_ready_future(channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError:
            Path(os.environ[_UNREACHED]).write_text(launcher.url)
            return 0
    sdk_worker_main.main(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
