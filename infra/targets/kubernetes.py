"""Parts that all manifests for Kubernetes share, and the jobs of earlier launches."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

from infra.errors import LaunchError
from infra.submission import EarlierJob, ask

Document = dict[str, Any]

# Command for all manifests. It creates an object, or changes the one of the same name.
APPLY = ("kubectl", "apply", "--filename", "-")
JOB, JOB_SET = "jobs.batch", "jobsets.jobset.x-k8s.io"
# Conditions by which a Job and a JobSet say that they have ended.
_ENDED = ("Complete", "Completed", "Failed")
# User of the images, as in infra/containers/*.Dockerfile.
USER = 10001
# Rule of a Job: a pod whose node was taken away has not failed.
ON_DISRUPTION: Document = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def make_labels(name: str) -> dict[str, str]:
    """Makes the labels of all objects of one launch."""
    return {"app.kubernetes.io/name": "vast-rl", "app.kubernetes.io/instance": name}


def make_network_policy(metadata: Document, *more: Document) -> Document:
    """Makes a policy by which only pods of one launch reach its pods.

    Args:
        metadata: Metadata of the launch, with its labels.
        *more: Rules that let in other pods.

    Returns:
        A NetworkPolicy.
    """
    own = {"matchLabels": metadata["labels"]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": own,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": own}]}, *more],
        },
    }


def make_exit_rule(action: str, container: str, codes: tuple[int, ...]) -> Document:
    """Makes a rule of a Job for exit codes of a container.

    Args:
        action: Action of the rule, such as ``FailJob``.
        container: Name of the container.
        codes: Exit codes that the rule is for.

    Returns:
        A rule of a ``podFailurePolicy``.
    """
    return {
        "action": action,
        "onExitCodes": {
            "containerName": container,
            "operator": "In",
            "values": list(codes),
        },
    }


def make_finder(
    kind: str, *, name: str, namespace: str, folder: str
) -> Callable[[], EarlierJob | None]:
    """Makes the function that looks for the job of an earlier launch.

    ``kubectl apply`` does nothing if a job that has ended has the same manifest, and is
    refused if the manifest differs, because the pods of a job cannot be changed.

    Args:
        kind: `JOB` or `JOB_SET`.
        name: Name of the job.
        namespace: Namespace of the job.
        folder: Folder that the job writes, by which a job of another launch is told
            from an earlier one of the same launch.

    Returns:
        The function. It raises a LaunchError if kubectl cannot tell, or if a job for
        another folder has the name and has not ended.
    """
    return functools.partial(_find_job, (kind, name, "--namespace", namespace), folder)


def _find_job(job: tuple[str, ...], folder: str) -> EarlierJob | None:
    command = ("kubectl", "get", *job, "--ignore-not-found", "--output", "json")
    asked, said = ask(command)
    if asked.returncode != 0:
        raise LaunchError(
            f"`{' '.join(command)}`: expected the job of an earlier launch, or none, "
            f"got exit code {asked.returncode}: {said}; check the cluster that kubectl "
            "uses"
        )
    if not asked.stdout.strip():
        return None
    found: Document = json.loads(asked.stdout)
    conditions = found.get("status", {}).get("conditions", [])
    # An object that is being removed exists until its pods have ended.
    ended = "deletionTimestamp" in found["metadata"] or any(
        each["type"] in _ENDED and each["status"] == "True" for each in conditions
    )
    arguments = {text.rstrip("/") for text in _list_arguments(found["spec"])}
    # Leaving that job alone would end with exit code 0, and this one would never run.
    if not ended and folder.rstrip("/") not in arguments:
        raise LaunchError(
            f"{' '.join(job)}: expected no job, or one for {folder}, got a job for "
            "another folder that has not ended; give another --name or --namespace, or "
            "wait for its end"
        )
    # In the foreground, the job is gone only after its pods: a new one would otherwise
    # meet pods of the same names.
    removal = ("kubectl", "delete", *job, "--ignore-not-found", "--cascade=foreground")
    return EarlierJob(" ".join(job[:2]), ended, removal)


def _list_arguments(spec: Any) -> Iterator[str]:
    """Lists the arguments of all containers of a job, however deep they are."""
    if isinstance(spec, dict):
        yield from spec.get("args", ())
        spec = list(spec.values())
    if isinstance(spec, list):
        for part in spec:
            yield from _list_arguments(part)
