"""Schema of a FlinkDeployment, the resource of Flink's operator around the pods.

It is taken from the custom resource that the operator publishes
(apache/flink-kubernetes- operator,
helm/flink-kubernetes-operator/crds/flinkdeployments.flink.apache.org-v1.yml) and from
its validator (DefaultValidator.java), for a session cluster. Fields of jobs, ingresses
and autoscaling are left out. Kubernetes' own schemas check the pods inside.
"""

from typing import Any

from tests.infra.json_schema import TEXT, closed_object

# Amounts of memory in Flink's notation, which differs from that of Kubernetes.
_MEMORY = {"type": "string", "pattern": "^[0-9]+ ?(m|mb|g|gb|k|kb|b)$"}


# The validator requires the memory of job manager and task manager.
_MANAGER = {
    "resource": closed_object(
        ("memory",),
        cpu={"type": "number", "exclusiveMinimum": 0},
        memory=_MEMORY,
        ephemeralStorage=TEXT,
    ),
    "replicas": {"type": "integer", "minimum": 1},
    "podTemplate": closed_object(
        ("spec",),
        apiVersion={"const": "v1"},
        kind={"const": "Pod"},
        metadata={"type": "object"},
        spec={"type": "object"},
    ),
}

FLINK_DEPLOYMENT: dict[str, Any] = closed_object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "flink.apache.org/v1beta1"},
    kind={"const": "FlinkDeployment"},
    metadata=closed_object(
        ("name",),
        name={"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,43}[a-z0-9])?$"},
        namespace=TEXT,
        labels={"type": "object", "additionalProperties": TEXT},
    ),
    spec=closed_object(
        ("flinkVersion", "serviceAccount", "jobManager", "taskManager"),
        image=TEXT,
        imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
        serviceAccount=TEXT,
        # These are the versions that the operator knows and Beam 2.77 has a runner for.
        flinkVersion={"enum": ["v1_19", "v1_20", "v2_0", "v2_1", "v2_2"]},
        mode={"enum": ["native", "standalone"]},
        flinkConfiguration={
            "type": "object",
            "additionalProperties": TEXT,
            # The operator sets these properties itself.
            "propertyNames": {
                "not": {
                    "enum": [
                        "kubernetes.namespace",
                        "kubernetes.cluster-id",
                        "high-availability.cluster-id",
                    ]
                }
            },
        },
        jobManager=closed_object(("resource",), **_MANAGER),
        taskManager=closed_object(("resource",), **_MANAGER),
    ),
)
