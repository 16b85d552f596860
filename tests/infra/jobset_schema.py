"""What JobSet's custom resource takes: the wrapper around the jobs.

Derived from the fields that its published Go types document (kubernetes-sigs/jobset,
api/jobset/v1alpha2/jobset_types.go: JobSetSpec, ReplicatedJob, Network, FailurePolicy
and FailurePolicyRule), without those that are deprecated or behind a feature gate.
Kubernetes publishes no schema for it; the jobs inside are checked by Kubernetes' own.
"""

from typing import Any


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


_LABEL = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_TEXT = {"type": "string", "minLength": 1}
_BOOLEAN = {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT, "uniqueItems": True}
_INT32 = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_METADATA = _object(
    ("name",),
    name=_LABEL,
    namespace=_LABEL,
    labels={"type": "object", "additionalProperties": _TEXT},
    annotations={"type": "object", "additionalProperties": _TEXT},
)
_RULE = _object(
    ("name", "action"),
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action={
        "enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    },
    onJobFailureReasons={
        "type": "array",
        "uniqueItems": True,
        # Reasons a Job's Failed condition can have (batch/v1).
        "items": {
            "enum": [
                "BackoffLimitExceeded",
                "DeadlineExceeded",
                "FailedIndexes",
                "MaxFailedIndexesExceeded",
                "PodFailurePolicy",
            ]
        },
    },
    targetReplicatedJobs=_TEXTS,
)
_REPLICATED_JOB = _object(
    ("name", "template"),
    name=_LABEL,
    replicas=_INT32,
    template=_object(("spec",), metadata={"type": "object"}, spec={"type": "object"}),
)

JOB_SET: dict[str, Any] = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_METADATA,
    spec=_object(
        ("replicatedJobs",),
        replicatedJobs={"type": "array", "minItems": 1, "items": _REPLICATED_JOB},
        network=_object(
            (),
            enableDNSHostnames=_BOOLEAN,
            subdomain=_LABEL,
            publishNotReadyAddresses=_BOOLEAN,
        ),
        failurePolicy=_object(
            (),
            maxRestarts=_INT32,
            restartStrategy={"enum": ["Recreate", "BlockingRecreate"]},
            rules={"type": "array", "items": _RULE},
        ),
        successPolicy=_object(
            ("operator",),
            operator={"enum": ["All", "Any"]},
            targetReplicatedJobs=_TEXTS,
        ),
        suspend=_BOOLEAN,
        ttlSecondsAfterFinished=_INT32,
    ),
)
