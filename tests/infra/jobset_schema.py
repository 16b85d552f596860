"""Schema of a JobSet, the custom resource around the jobs.

It is derived from the fields that the published Go types document
(kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go: JobSetSpec, ReplicatedJob,
Network, FailurePolicy and FailurePolicyRule), without those that are deprecated or
behind a feature gate. No schema of JobSet is published. Kubernetes' own schemas check
the jobs inside.
"""

from typing import Any

from tests.infra.json_schema import TEXT, closed_object

_LABEL = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
_BOOLEAN = {"type": "boolean"}
_TEXTS = {"type": "array", "items": TEXT, "uniqueItems": True}
_INT32 = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_METADATA = closed_object(
    ("name",),
    name=_LABEL,
    namespace=_LABEL,
    labels={"type": "object", "additionalProperties": TEXT},
    annotations={"type": "object", "additionalProperties": TEXT},
)
_RULE = closed_object(
    ("name", "action"),
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action={
        "enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]
    },
    onJobFailureReasons={
        "type": "array",
        "uniqueItems": True,
        # Possible reasons of a Job's Failed condition (batch/v1).
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
_REPLICATED_JOB = closed_object(
    ("name", "template"),
    name=_LABEL,
    replicas=_INT32,
    template=closed_object(
        ("spec",), metadata={"type": "object"}, spec={"type": "object"}
    ),
)

JOB_SET: dict[str, Any] = closed_object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_METADATA,
    spec=closed_object(
        ("replicatedJobs",),
        replicatedJobs={"type": "array", "minItems": 1, "items": _REPLICATED_JOB},
        network=closed_object(
            (),
            enableDNSHostnames=_BOOLEAN,
            subdomain=_LABEL,
            publishNotReadyAddresses=_BOOLEAN,
        ),
        failurePolicy=closed_object(
            (),
            maxRestarts=_INT32,
            restartStrategy={"enum": ["Recreate", "BlockingRecreate"]},
            rules={"type": "array", "items": _RULE},
        ),
        successPolicy=closed_object(
            ("operator",),
            operator={"enum": ["All", "Any"]},
            targetReplicatedJobs=_TEXTS,
        ),
        suspend=_BOOLEAN,
        ttlSecondsAfterFinished=_INT32,
    ),
)
