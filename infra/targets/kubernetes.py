"""What manifests for Kubernetes share, whatever they run."""

from typing import Any

Document = dict[str, Any]

# infra/containers/*.Dockerfile.
USER = 10001
# A pod that lost its node to somebody else has not failed.
ON_DISRUPTION: Document = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def labels(name: str) -> dict[str, str]:
    """By which what belongs to one launch is found."""
    return {"app.kubernetes.io/name": "vast-rl", "app.kubernetes.io/instance": name}


def network_policy(metadata: Document, *more: Document) -> Document:
    """Lets in the pods of one launch alone.

    Args:
        metadata: Of the launch, with its labels.
        *more: Rules that let in others.

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


def on_exit(action: str, container: str, codes: tuple[int, ...]) -> Document:
    """A rule of a Job for exit codes of a container."""
    return {
        "action": action,
        "onExitCodes": {
            "containerName": container,
            "operator": "In",
            "values": list(codes),
        },
    }
