"""Manifests for Kubernetes: a JobSet that trains, and a Job that evaluates.

A pod runs one process of the run. The number of the process is the pod's completion
index. Pod 0 is the coordinator, and a headless service gives it a name. A pod may end
in these ways:

- With exit code 0: the process is done.
- With 2 or 3 (wrong input, or a loss that is not finite): the JobSet fails at once,
  because no restart can help.
- With 75: the process was told to stop and has saved. All processes stop at the same
  step, so each pod is replaced and the run continues. This is no counted restart.
- With its node: the pod is replaced, which is no counted restart either. Its peers lose
  it and fail.
- With any other exit code, as those peers do: the Job fails, and the JobSet restarts it
  from the last checkpoint, up to ``max_restarts`` times.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.checks.names import check_job_name
from infra.estimates.machines import Slice
from infra.targets.kubernetes import (
    ON_DISRUPTION,
    USER,
    Document,
    make_exit_rule,
    make_labels,
    make_network_policy,
)
from trainer.errors import EXIT_DIVERGED, EXIT_PREEMPTED, EXIT_USAGE

# Port of coordinators in Cloud TPU's own tools, which firewalls allow.
COORDINATOR_PORT = 8476
CONFIG_FOLDER = "/etc/vast-rl"
CONFIG_FILE = "run.toml"
SAVED, HOPELESS = EXIT_PREEMPTED, (EXIT_USAGE, EXIT_DIVERGED)
# Seconds that a process waits for the others. GKE may add their nodes one after
# another, each in many minutes, and every wait in vain is a counted restart.
_START_TIMEOUT_S = 1800
_JOB = "trainer"


@dataclass(frozen=True)
class Training:
    """Settings of a training JobSet.

    Attributes:
        name: Name of the JobSet.
        namespace: Kubernetes namespace.
        account: Kubernetes service account, bound to a Google service account.
        image: Image with the trainer and JAX for the chips.
        region: Region of the cluster.
        files: Texts of ``CONFIG_FILE`` and of the files that it is read with, by their
            paths from its folder; they are sent with the job.
        arguments: Arguments of ``python -m trainer train CONFIG``.
        chips: Chips to train on.
        spot: Whether to use nodes that can be taken away.
        max_restarts: Largest number of counted restarts of the JobSet.
        grace_s: Seconds from SIGTERM to SIGKILL.
    """

    name: str
    namespace: str
    account: str
    image: str
    region: str
    files: Mapping[str, str]
    arguments: tuple[str, ...]
    chips: Slice
    spot: bool
    max_restarts: int
    grace_s: int


def count_set_name(hosts: int) -> int:
    """Counts the characters that the name of a JobSet may have.

    Args:
        hosts: Number of its pods.

    Returns:
        The largest number with which the names of its pods are host names.
    """
    # Kubernetes appends the job's name, its index, the pod's index and a random suffix.
    return 63 - len(f"-{_JOB}-0-{hosts - 1}-xxxxx")


def make_training_documents(training: Training) -> list[Document]:
    """Makes the manifests of a training.

    Args:
        training: Settings of the training.

    Returns:
        A ConfigMap with the configuration, a NetworkPolicy by which only the JobSet's
        own pods reach its pods, and the JobSet.

    Raises:
        LaunchError: If the name is too long for the names of pods.
    """
    name = check_job_name(training.name, longest=count_set_name(training.chips.hosts))
    metadata = {
        "name": name,
        "namespace": training.namespace,
        "labels": make_labels(name),
    }
    annotations = {}
    if training.chips.topology is not None and training.chips.hosts > 1:
        # All pods must be on one slice, which is one node pool of GKE.
        annotations = {
            "alpha.jobset.sigs.k8s.io/exclusive-topology": (
                "cloud.google.com/gke-nodepool"
            )
        }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "name": f"{name}-config"},
        "data": {_make_key(path): text for path, text in training.files.items()},
    }
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            **metadata,
            **({"annotations": annotations} if annotations else {}),
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "failurePolicy": {
                "maxRestarts": training.max_restarts,
                # New pods start once all old ones have ended: two runs that write at
                # once would damage a checkpoint.
                "restartStrategy": "BlockingRecreate",
                "rules": [
                    {
                        "name": "noRestartHelps",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [
                {
                    "name": _JOB,
                    "replicas": 1,
                    "template": _make_training_job(training, name),
                }
            ],
        },
    }
    # JAX's coordinator believes anybody who reaches it, and so anybody could end a run.
    return [config_map, make_network_policy(metadata), job_set]


def _make_training_job(training: Training, name: str) -> Document:
    hosts = training.chips.hosts
    return {
        "spec": {
            "completionMode": "Indexed",
            "completions": hosts,
            "parallelism": hosts,
            # The Job itself restarts no pod: one process cannot rejoin a run, so the
            # JobSet restarts all of them.
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    make_exit_rule("FailJob", _JOB, HOPELESS),
                    make_exit_rule("Ignore", _JOB, (SAVED,)),
                    ON_DISRUPTION,
                ]
            },
            "template": {
                "metadata": {"labels": make_labels(name)},
                "spec": _make_training_pod(training, name),
            },
        }
    }


def _make_training_pod(training: Training, name: str) -> Document:
    chips = training.chips
    selector = {"topology.kubernetes.io/region": training.region}
    if chips.topology is not None:
        resource = "google.com/tpu"
        selector["cloud.google.com/gke-tpu-accelerator"] = chips.accelerator.selector
        selector["cloud.google.com/gke-tpu-topology"] = chips.topology
    else:
        resource = "nvidia.com/gpu"
        selector["cloud.google.com/gke-accelerator"] = chips.accelerator.selector
    config: Document = {"name": f"{name}-config"}
    if any(_make_key(path) != path for path in training.files):
        # Keys of a ConfigMap are no paths, so a file in a folder needs its path here.
        config["items"] = [
            {"key": _make_key(path), "path": path} for path in training.files
        ]
    volumes: list[Document] = [{"name": "config", "configMap": config}]
    mounts: list[Document] = [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
    ]
    if resource == "nvidia.com/gpu":
        # NCCL's buffers in shared memory need more than the 64 MiB that containers have
        # by default.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    limits = {resource: chips.chips_per_host}
    # With a list of platforms JAX fails if it cannot use the first one. It would
    # otherwise train on the processors of an expensive machine.
    platforms = "tpu,cpu" if chips.topology is not None else "cuda,cpu"
    container: Document = {
        "name": _JOB,
        "image": training.image,
        "command": ["python", "-m", "trainer", "train"],
        "args": [f"{CONFIG_FOLDER}/{CONFIG_FILE}", *training.arguments],
        "env": [{"name": "JAX_PLATFORMS", "value": platforms}],
        "resources": {"requests": dict(limits), "limits": limits},
        "securityContext": _UNPRIVILEGED,
        "volumeMounts": mounts,
    }
    if chips.hosts > 1:
        container["env"] += _make_variables(name, chips.hosts)
        container["ports"] = [
            {"name": "coordinator", "containerPort": COORDINATOR_PORT}
        ]
    pod: Document = {
        "restartPolicy": "Never",
        "serviceAccountName": training.account,
        "terminationGracePeriodSeconds": training.grace_s,
        "nodeSelector": selector,
        "securityContext": _NOT_ROOT,
        "containers": [container],
        "volumes": volumes,
    }
    if training.spot:
        # Spot nodes may be tainted, so that only pods that tolerate it are put there.
        selector["cloud.google.com/gke-spot"] = "true"
        pod["tolerations"] = [
            {
                "key": "cloud.google.com/gke-spot",
                "operator": "Equal",
                "value": "true",
                "effect": "NoSchedule",
            }
        ]
    return pod


def _make_key(path: str) -> str:
    """Makes the key of a file in a ConfigMap, which may not contain a slash."""
    return path.replace("/", ".")


def _make_variables(name: str, hosts: int) -> list[Document]:
    """Makes the environment variables by which processes find each other."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    # This id is random, the same for all pods of the Job, and a new one after a restart
    # of the JobSet: pods of two starts cannot mix.
    token = "metadata.labels['batch.kubernetes.io/controller-uid']"
    return [
        {
            "name": "VAST_COORDINATOR_ADDRESS",
            "value": f"{name}-{_JOB}-0-0.{name}:{COORDINATOR_PORT}",
        },
        {"name": "VAST_NUM_PROCESSES", "value": str(hosts)},
        {"name": "VAST_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "VAST_TOKEN", "valueFrom": {"fieldRef": {"fieldPath": token}}},
        {"name": "VAST_START_TIMEOUT", "value": str(_START_TIMEOUT_S)},
    ]


@dataclass(frozen=True)
class EvaluationJob:
    """Settings of an evaluation Job; fields not listed here are those of `Training`.

    Attributes:
        cpus: Number of cores; each runs one environment process.
        memory: Memory, as a Kubernetes quantity.
    """

    name: str
    namespace: str
    account: str
    image: str
    region: str
    arguments: tuple[str, ...]
    cpus: int
    memory: str


def make_evaluation_documents(evaluation: EvaluationJob) -> list[Document]:
    """Makes the manifest of an evaluation Job with one pod on CPUs.

    Args:
        evaluation: Settings of the evaluation.

    Returns:
        The Job.

    Raises:
        LaunchError: If the name is too long for the names of pods.
    """
    name = check_job_name(evaluation.name, longest=63 - len("-xxxxx"))
    quantities = {"cpu": str(evaluation.cpus), "memory": evaluation.memory}
    container = {
        "name": "evaluator",
        "image": evaluation.image,
        "command": ["python", "-m", "trainer", "evaluate"],
        "args": list(evaluation.arguments),
        "env": [{"name": "JAX_PLATFORMS", "value": "cpu"}],
        "resources": {
            "requests": quantities,
            "limits": {"memory": evaluation.memory},
        },
        "securityContext": _UNPRIVILEGED,
    }
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": evaluation.namespace,
            "labels": make_labels(name),
        },
        "spec": {
            # A lost pod costs little: its successor skips recorded evaluations.
            "backoffLimit": 3,
            "template": {
                "metadata": {"labels": make_labels(name)},
                "spec": {
                    "restartPolicy": "Never",
                    "serviceAccountName": evaluation.account,
                    "nodeSelector": {
                        "topology.kubernetes.io/region": evaluation.region
                    },
                    "securityContext": _NOT_ROOT,
                    "containers": [container],
                },
            },
        },
    }
    return [job]


_UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
_NOT_ROOT = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
