"""Parts that all manifests for Kubernetes share."""

from typing import Any

Document = dict[str, Any]

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
