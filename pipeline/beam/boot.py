"""A worker process of Flink or Spark, for ``--environment_type=PROCESS``.

The wheel installs this program as ``vast-rl-worker``. It replaces the program ``boot``
of Beam's containers: it asks the engine for the endpoints and the options of a job, and
starts Beam's worker with them. It downloads no packages, because vast-rl is installed
wherever this program is.
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

# The engine runs on the same machine and waits for the worker, so an answer that takes
# a minute will not come any more.
_ANSWER_S = 60.0


def ask_environment(worker: str, provision_endpoint: str) -> dict[str, str]:
    """Asks the engine for the environment variables that Beam's worker reads.

    Args:
        worker: Name that the engine gave this worker.
        provision_endpoint: ``HOST:PORT`` at which the engine answers.

    Returns:
        Values of the variables, by name.

    Raises:
        grpc.RpcError: If the engine does not answer.
    """
    # The engine tells its workers apart by this entry, not by the connection.
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
        "CONTROL_API_SERVICE_DESCRIPTOR": _format(info.control_endpoint),
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    # Beam's worker would take an empty endpoint for an address to send its logs to.
    if info.logging_endpoint.url:
        variables["LOGGING_API_SERVICE_DESCRIPTOR"] = _format(info.logging_endpoint)
    return variables


def _format(endpoint: endpoints_pb2.ApiServiceDescriptor) -> str:
    """Formats an endpoint as Beam's worker parses it."""
    return str(text_format.MessageToString(endpoint, as_one_line=True))


def main(
    arguments: Sequence[str] | None = None,
    variables: MutableMapping[str, str] = os.environ,
) -> int:
    """Runs a worker until the engine ends it.

    Args:
        arguments: ``--id`` and ``--provision_endpoint``; other arguments, which engines
            add for workers that download packages, are ignored. None takes those of
            the process.
        variables: Environment variables, which are updated for Beam's worker.

    Returns:
        Exit code.
    """
    parser = argparse.ArgumentParser("vast-rl-worker", description=__doc__)
    parser.add_argument("--id", required=True)
    parser.add_argument("--provision_endpoint", required=True)
    known, _ = parser.parse_known_args(arguments)
    variables.update(ask_environment(known.id, known.provision_endpoint))
    sdk_worker_main.main(sys.argv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
