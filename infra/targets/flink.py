"""Manifests for Flink on Kubernetes, for Flink's operator: a cluster and a launcher.

Each task manager has a pool of Beam workers in its own pod. The launcher, `python -m
pipeline`, is a Job whose pod has Beam's job server beside it. A job may end in these
ways:

- The launcher is told to stop: it makes Flink cancel the job, within a minute.
- Data are wrong: Flink restarts nothing, so the launcher hears of the error at once and
  exits with 2, and the Job fails.
- A worker or a task manager is lost: Flink gives up the job, and the launcher submits
  it again. Finished parts stay, and Kubernetes replaces the lost pod.
- The launcher is lost: another pod replaces it and takes the job over.

Task managers that are idle for half a minute are released. The job manager stays until
the FlinkDeployment is deleted.
"""

from dataclasses import dataclass

from infra.checks.names import check_job_name
from infra.targets.kubernetes import (
    ON_DISRUPTION,
    USER,
    Document,
    make_exit_rule,
    make_labels,
    make_network_policy,
)
from pipeline.store.errors import EXIT_USAGE

# The latest 1.x release of Flink, for which Beam has a job server.
FLINK = "1.20"
FLINK_IMAGE = "flink:1.20.4-java17"
JOB_SERVER_IMAGE = "apache/beam_flink1.20_job_server"
FLINK_USER = 9999
REST_PORT, JOB_PORT, ARTIFACT_PORT, POOL_PORT = 8081, 8099, 8098, 50000
# Service account that the operator's chart makes for job managers, which start pods.
OPERATORS_ACCOUNT = "flink"
_FROM_OPERATOR: Document = {
    "from": [
        {
            "namespaceSelector": {},
            "podSelector": {
                "matchLabels": {"app.kubernetes.io/name": "flink-kubernetes-operator"}
            },
        }
    ],
    "ports": [{"protocol": "TCP", "port": REST_PORT}],
}
# The operator merges its container into the one of this name in a template.
_MAIN = "flink-main-container"
_POOL = "apache_beam.runners.worker.worker_pool_main"
# Seconds for the launcher to have Flink cancel the job, before it is killed.
_GRACE_S = 60
# Program of an init container, which waits for the job manager: the cluster may take
# minutes to start, and the launcher's pod starts at the same time.
_AWAIT = f"""\
import sys, time, urllib.request
deadline = time.monotonic() + 900
while True:
    try:
        urllib.request.urlopen(f"http://{{sys.argv[1]}}:{REST_PORT}/config", timeout=5)
        break
    except OSError as error:
        if time.monotonic() > deadline:
            raise SystemExit(f"{{sys.argv[1]}}: no job manager ({{error}})")
        time.sleep(2)
"""


@dataclass(frozen=True)
class FlinkJob:
    """Settings of a cluster and its launcher.

    Attributes:
        name: Name of the cluster and of the Job.
        namespace: Kubernetes namespace, which the operator must watch.
        account: Kubernetes service account of workers and launcher, bound to a Google
            service account.
        image: Image of the pipeline, from infra/containers/pipeline.Dockerfile.
        beam: Version of Beam in the image; the job server must have the same.
        region: Region of the cluster.
        arguments: Arguments of ``python -m pipeline``, without Beam's.
        beam_arguments: Further arguments of Beam.
        workers: Number of task managers; each has one slot and one pool of workers.
        collecting: Whether the job collects, on one core, or shards, on two.
    """

    name: str
    namespace: str
    account: str
    image: str
    beam: str
    region: str
    arguments: tuple[str, ...]
    beam_arguments: tuple[str, ...]
    workers: int
    collecting: bool


def check_cluster_name(name: str) -> str:
    """Checks the name of a cluster; Flink's operator allows 45 characters."""
    return check_job_name(name, longest=45)


def make_flink_documents(job: FlinkJob) -> list[Document]:
    """Makes the manifests of a Flink cluster and of the launcher of a pipeline on it.

    Args:
        job: Settings of both.

    Returns:
        A NetworkPolicy by which only the cluster's own pods and the operator reach its
        pods, the FlinkDeployment, and the launcher's Job.

    Raises:
        LaunchError: If the name is too long for the names of pods.
    """
    check_cluster_name(job.name)
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": make_labels(job.name),
    }
    return [
        # Flink runs whatever it is sent, by anybody who reaches it.
        make_network_policy(metadata, _FROM_OPERATOR),
        _make_cluster(job, metadata),
        _launcher(job, metadata),
    ]


def _make_cluster(job: FlinkJob, metadata: Document) -> Document:
    writable = ("/tmp", "/opt/flink/log")
    main = _make_container(
        {"name": _MAIN}, user=FLINK_USER, writable=writable, volumes="flink"
    )
    # A pool beside each task manager and not one for all: task managers give their
    # workers the same names and tell them to connect to localhost.
    pool = _make_container(
        {
            "name": "beam-workers",
            "image": job.image,
            "command": ["python", "-m", _POOL, f"--service_port={POOL_PORT}"],
            # An init container with this policy is a sidecar: it starts before the task
            # manager, and again if the kernel kills it for memory. Flink never restarts
            # the containers of its pods.
            "restartPolicy": "Always",
            "startupProbe": _listening(POOL_PORT),
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": _make_resources(
                cpu=1 if job.collecting else 2, memory_gi=2 if job.collecting else 3
            ),
        },
        user=USER,
        writable=("/tmp",),
        volumes="beam-workers",
    )
    template = _make_pod(job, [main], volumes=_make_volumes("flink", writable))
    workers = _make_pod(
        job,
        [main],
        volumes=[
            *_make_volumes("flink", writable),
            *_make_volumes("beam-workers", ("/tmp",)),
        ],
        before=[pool],
    )
    workers["spec"]["automountServiceAccountToken"] = False
    return {
        "apiVersion": "flink.apache.org/v1beta1",
        "kind": "FlinkDeployment",
        "metadata": metadata,
        "spec": {
            "image": FLINK_IMAGE,
            "flinkVersion": f"v{FLINK.replace('.', '_')}",
            "mode": "native",
            "serviceAccount": OPERATORS_ACCOUNT,
            "flinkConfiguration": {
                "taskmanager.numberOfTaskSlots": "1",
                # The launcher knows which failures another try may help.
                "restart-strategy.type": "none",
                "kubernetes.taskmanager.service-account": job.account,
                "resourcemanager.taskmanager-timeout": "30 s",
                # By default, a lost task manager is noticed after 50 s.
                "heartbeat.interval": "5 s",
                "heartbeat.timeout": "20 s",
            },
            "jobManager": {
                "replicas": 1,
                "resource": {"cpu": 1, "memory": "2048m"},
                "podTemplate": template,
            },
            "taskManager": {
                "resource": {"cpu": 0.5, "memory": "2048m"},
                "podTemplate": workers,
            },
        },
    }


def _launcher(job: FlinkJob, metadata: Document) -> Document:
    server = f"{JOB_SERVER_IMAGE}:{job.beam}"
    rest = f"{job.name}-rest"
    await_cluster = _make_container(
        {
            "name": "await-cluster",
            "image": job.image,
            "command": ["python", "-c", _AWAIT, rest],
            "resources": _make_resources(cpu=1, memory_gi=1),
        },
        user=USER,
    )
    job_server = _make_container(
        {
            "name": "job-server",
            "image": server,
            "args": [
                f"--flink-master={rest}:{REST_PORT}",
                "--job-host=localhost",
                f"--job-port={JOB_PORT}",
                f"--artifact-port={ARTIFACT_PORT}",
                # The pipeline has no transforms of other languages to expand.
                "--expansion-port=-1",
                "--artifacts-dir=/tmp/artifacts",
            ],
            "restartPolicy": "Always",
            "startupProbe": _listening(JOB_PORT, inside=True),
            "resources": _make_resources(cpu=1, memory_gi=2),
        },
        user=USER,
        writable=("/tmp",),
        volumes="job-server",
    )
    launcher = _make_container(
        {
            "name": "launcher",
            "image": job.image,
            "command": ["python", "-m", "pipeline"],
            "args": [
                *job.arguments,
                # The lock of the store may be that of a lost pod. Nobody else can hold
                # it, because the Job runs one pod at a time.
                "--take-over",
                "--",
                *list_engine_arguments(
                    f"localhost:{JOB_PORT}",
                    f"localhost:{POOL_PORT}",
                    parallelism=job.workers,
                    flink_master=f"{rest}:{REST_PORT}",
                ),
                *job.beam_arguments,
            ],
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": _make_resources(cpu=1, memory_gi=4),
        },
        user=USER,
        writable=("/tmp",),
        volumes="launcher",
    )
    pod = _make_pod(
        job,
        [launcher],
        before=[await_cluster, job_server],
        volumes=[
            *_make_volumes("job-server", ("/tmp",)),
            *_make_volumes("launcher", ("/tmp",)),
        ],
    )
    pod["spec"] |= {
        "restartPolicy": "Never",
        "serviceAccountName": job.account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _GRACE_S,
    }
    # A template of a Job is no object of its own, unlike one of a FlinkDeployment.
    del pod["apiVersion"], pod["kind"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 3,
            # A pod is replaced once it has ended, so that no two launchers run at once.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    make_exit_rule("FailJob", "launcher", (EXIT_USAGE,)),
                    ON_DISRUPTION,
                ]
            },
            "template": pod,
        },
    }


def list_engine_arguments(
    job_endpoint: str,
    workers_at: str,
    *,
    parallelism: int,
    flink_master: str | None = None,
) -> tuple[str, ...]:
    """Makes Beam's arguments for Flink or Spark, with Beam's job server.

    Args:
        job_endpoint: ``HOST:PORT`` of the job server.
        workers_at: ``localhost:PORT`` of the pool beside each task manager or Spark
            worker, or the path of ``vast-rl-worker`` on its machine.
        parallelism: Parallelism of the job on Flink; Spark uses all cores of its
            workers.
        flink_master: ``HOST:PORT`` of Flink's REST interface, by which the launcher
            cancels the job when it ends; None for Spark.

    Returns:
        The arguments.
    """
    if workers_at.startswith("/"):
        environment = ("PROCESS", f'{{"command": "{workers_at}"}}')
    else:
        environment = ("EXTERNAL", workers_at)
    return (
        "--runner=PortableRunner",
        f"--job_endpoint={job_endpoint}",
        f"--environment_type={environment[0]}",
        f"--environment_config={environment[1]}",
        # Workers would fetch a list of the launcher's packages, from a path on the disk
        # of the job server, which they do not share.
        "--experiments=disable_logging_submission_environment",
        *(
            (f"--flink_master={flink_master}", f"--parallelism={parallelism}")
            if flink_master is not None
            else ()
        ),
    )


def _make_pod(
    job: FlinkJob,
    containers: list[Document],
    *,
    volumes: list[Document],
    before: list[Document] | None = None,
) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": make_labels(job.name)},
        "spec": {
            "nodeSelector": {"topology.kubernetes.io/region": job.region},
            "securityContext": {
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **({"initContainers": before} if before else {}),
            "containers": containers,
            "volumes": volumes,
        },
    }


def _make_container(
    container: Document,
    *,
    user: int,
    writable: tuple[str, ...] = (),
    volumes: str = "",
) -> Document:
    """Adds security settings: no privileges, and only the given paths are writable."""
    return {
        **container,
        "securityContext": {
            "runAsUser": user,
            "runAsGroup": user,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **(
            {
                "volumeMounts": [
                    {"name": _name_volume(volumes, path), "mountPath": path}
                    for path in writable
                ]
            }
            if writable
            else {}
        ),
    }


def _make_volumes(name: str, paths: tuple[str, ...]) -> list[Document]:
    """Makes an empty volume for each path that a container writes to."""
    return [{"name": _name_volume(name, path), "emptyDir": {}} for path in paths]


def _name_volume(name: str, path: str) -> str:
    """Names the volume of a container's path."""
    return f"{name}-{path.rpartition('/')[2]}"


def _listening(port: int, *, inside: bool = False) -> Document:
    """Makes a probe that waits until a port of the pod is open.

    Args:
        port: Number of the port.
        inside: Whether to probe from within the container.

    Returns:
        A probe.
    """
    probe: Document = {"tcpSocket": {"port": port}}
    if inside:
        # The kubelet probes from outside the pod, where localhost's ports are closed.
        probe = {
            "exec": {"command": ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]}
        }
    return {**probe, "periodSeconds": 2, "failureThreshold": 90}


def _make_resources(*, cpu: int, memory_gi: int) -> Document:
    # Memory is limited to what is requested, so that a node never runs out of it; cores
    # are not limited, and idle ones may be used.
    memory = f"{memory_gi}Gi"
    return {
        "requests": {"cpu": str(cpu), "memory": memory},
        "limits": {"memory": memory},
    }
