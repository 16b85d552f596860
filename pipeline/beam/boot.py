"""A worker process of Flink or Spark, for ``--environment_type=PROCESS``.

Installed as the program ``vast-rl-worker``, which plays the part that the program
``boot`` plays in Beam's containers: the engine says where it answers questions, and
there the worker learns where its work comes from. It fetches no files, for the package
is installed wherever this program is.
"""

import argparse
import os
import sys
from collections.abc import MutableMapping, Sequence

import grpc
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)
from apache_beam.runners.worker import sdk_worker_main
from google.protobuf import json_format, text_format

# An engine that started this process is on this machine, and waits for it.
_ANSWER_S = 60.0


def environment(worker: str, provision_endpoint: str) -> dict[str, str]:
    """Asks the engine what Beam's worker reads in its environment.

    Args:
        worker: How the engine calls this worker.
        provision_endpoint: ``HOST:PORT`` that it was started with.

    Returns:
        Variables, by name.

    Raises:
        grpc.RpcError: If nobody answers there.
    """
    # Engines know by it who asks.
    metadata = [("worker_id", worker)]
    with grpc.insecure_channel(provision_endpoint) as channel:
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        info = service.GetProvisionInfo(
            beam_provision_api_pb2.GetProvisionInfoRequest(),
            metadata=metadata,
            timeout=_ANSWER_S,
            wait_for_ready=True,
        ).info
    variables = {
        "WORKER_ID": worker,
        "CONTROL_API_SERVICE_DESCRIPTOR": _text(info.control_endpoint),
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    if info.logging_endpoint.url:
        variables["LOGGING_API_SERVICE_DESCRIPTOR"] = _text(info.logging_endpoint)
    return variables


def _text(endpoint: endpoints_pb2.ApiServiceDescriptor) -> str:
    return str(text_format.MessageToString(endpoint, as_one_line=True))


def main(
    arguments: Sequence[str] | None = None,
    variables: MutableMapping[str, str] = os.environ,
) -> int:
    """Runs a worker until its engine is done with it.

    Args:
        arguments: ``--id`` and ``--provision_endpoint``; what else engines add is for
            workers that fetch files. The process's own if None.
        variables: Where Beam's worker reads; the process's own.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser("vast-rl-worker", description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    known, _ = parser.parse_known_args(arguments)
    variables.update(environment(known.id, known.provision_endpoint))
    sdk_worker_main.main(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
