"""Manifests for Kubernetes: a JobSet that trains on GPUs or a TPU slice, and a Job.

A pod is one process of the run. Its number is its completion index, and pod 0, found
by the name the headless service gives it, is the coordinator. What a pod's end means:

- 0: done. 2 or 3 (wrong input, a loss that is not finite): the set fails at once, as
  no restart can help.
- 75: it was told to stop and has saved. All processes stop at the same step, so each
  pod is replaced and the run goes on; that counts against nothing.
- A pod that a node's end took along is replaced without counting, too. Its peers lose
  it and fail: then, and on any other exit code, the Job fails and the set is started
  again, up to ``max_restarts`` times, from the last checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.checks.names import check_job_name
from infra.estimates.machines import Slice
from infra.targets.kubernetes import (
    ON_DISRUPTION,
    USER,
    Document,
    labels,
    network_policy,
    on_exit,
)
from trainer.errors import EXIT_DIVERGED, EXIT_PREEMPTED, EXIT_USAGE

# Where Cloud TPU's own tools expect a coordinator, so firewalls let it through.
COORDINATOR_PORT = 8476
CONFIG_FOLDER = "/etc/vast-rl"
CONFIG_FILE = "run.toml"
SAVED, HOPELESS = EXIT_PREEMPTED, (EXIT_USAGE, EXIT_DIVERGED)
_JOB = "trainer"


@dataclass(frozen=True)
class Training:
    """What a training JobSet is made from.

    Attributes:
        name: Of the set.
        namespace: Kubernetes namespace.
        account: Kubernetes service account, bound to one of Google's.
        image: With trainer and JAX for the chips.
        region: Of the cluster.
        files: Text of the configuration file, and of those it is read with; they travel
            with the job. By path from the folder of the first, ``CONFIG_FILE``.
        arguments: Of ``python -m trainer train CONFIG``.
        chips: That train.
        spot: Whether on nodes that can be taken away.
        max_restarts: Restarts of the set that count.
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


def check_set_name(name: str, hosts: int) -> str:
    """Checks a JobSet's name: those of its pods must be host names."""
    appended = f"-{_JOB}-0-{hosts - 1}-xxxxx"
    return check_job_name(name, longest=63 - len(appended))


def training_documents(training: Training) -> list[Document]:
    """Makes a training job.

    Args:
        training: From what.

    Returns:
        A ConfigMap with the configuration, a NetworkPolicy that lets the set's own
        pods alone reach its pods, and the JobSet.

    Raises:
        LaunchError: If its name is too long for its pods.
    """
    name = check_set_name(training.name, training.chips.hosts)
    metadata = {"name": name, "namespace": training.namespace, "labels": labels(name)}
    annotations = {}
    if training.chips.topology is not None and training.chips.hosts > 1:
        # All pods on one slice, which GKE keeps as one node pool.
        annotations = {
            "alpha.jobset.sigs.k8s.io/exclusive-topology": (
                "cloud.google.com/gke-nodepool"
            )
        }
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "name": f"{name}-config"},
        "data": {_key(path): text for path, text in training.files.items()},
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
                # Pods of before must be gone: two writers would spoil a checkpoint.
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
                {"name": _JOB, "replicas": 1, "template": _training_job(training, name)}
            ],
        },
    }
    # Who reaches JAX's coordinator can end a run.
    return [config_map, network_policy(metadata), job_set]


def _training_job(training: Training, name: str) -> Document:
    hosts = training.chips.hosts
    return {
        "spec": {
            "completionMode": "Indexed",
            "completions": hosts,
            "parallelism": hosts,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    on_exit("FailJob", _JOB, HOPELESS),
                    on_exit("Ignore", _JOB, (SAVED,)),
                    ON_DISRUPTION,
                ]
            },
            "template": {
                "metadata": {"labels": labels(name)},
                "spec": _training_pod(training, name),
            },
        }
    }


def _training_pod(training: Training, name: str) -> Document:
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
    if any(_key(path) != path for path in training.files):
        # A key is no path: what lies in a folder has to be put there.
        config["items"] = [{"key": _key(path), "path": path} for path in training.files]
    volumes: list[Document] = [{"name": "config", "configMap": config}]
    mounts: list[Document] = [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
    ]
    if resource == "nvidia.com/gpu":
        # NCCL's buffers between processes of one machine outgrow the 64 MiB of Docker.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    limits = {resource: chips.chips_per_host}
    container = {
        "name": _JOB,
        "image": training.image,
        "command": ["python", "-m", "trainer", "train"],
        "args": [f"{CONFIG_FOLDER}/{CONFIG_FILE}", *training.arguments],
        "resources": {"requests": dict(limits), "limits": limits},
        "securityContext": _UNPRIVILEGED,
        "volumeMounts": mounts,
    }
    if chips.hosts > 1:
        container["env"] = _processes(name, chips.hosts)
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


def _key(path: str) -> str:
    """Key of a file in a ConfigMap, which may hold no slash."""
    return path.replace("/", ".")


def _processes(name: str, hosts: int) -> list[Document]:
    """What `python -m trainer train` reads to find its peers."""
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    # Random, the same for all pods of the Job, and another when the set starts again.
    token = "metadata.labels['batch.kubernetes.io/controller-uid']"
    return [
        {
            "name": "VAST_COORDINATOR_ADDRESS",
            "value": f"{name}-{_JOB}-0-0.{name}:{COORDINATOR_PORT}",
        },
        {"name": "VAST_NUM_PROCESSES", "value": str(hosts)},
        {"name": "VAST_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}},
        {"name": "VAST_TOKEN", "valueFrom": {"fieldRef": {"fieldPath": token}}},
    ]


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation Job is made from; fields as of `Training`.

    Attributes:
        cpus: Cores, one environment process each.
        memory: Kubernetes quantity.
    """

    name: str
    namespace: str
    account: str
    image: str
    region: str
    arguments: tuple[str, ...]
    cpus: int
    memory: str


def evaluation_documents(evaluation: Evaluation) -> list[Document]:
    """Makes an evaluation Job: one pod on CPUs, as MuJoCo wants.

    A pod that is lost is replaced: evaluations of a step that is done are not done
    again.
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
            "labels": labels(name),
        },
        "spec": {
            "backoffLimit": 3,
            "template": {
                "metadata": {"labels": labels(name)},
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
