"""Manifests for Flink on Kubernetes, by Flink's operator: a cluster, and who uses it.

Each task manager has a pool of Beam workers in its own pod. Task managers call their
workers alike and tell them to come to localhost, so that a pool of several cannot be.
The launcher, `python -m pipeline`, is a Job whose pod has Beam's job server beside it.
How things end:

- The launcher is told to end: it has Flink cancel the job, within a minute.
- Wrong data: Flink tries nothing again, so the launcher hears of them at once, ends
  with 2, and the Job fails.
- A worker or a task manager is lost: Flink gives the job up, the launcher hands it in
  again, and what was finished stays. Kubernetes replaces what was lost.
- The launcher is lost: another pod takes its place, and over from it.
- Task managers that have nothing to do for half a minute are given back. The job
  manager stays until the FlinkDeployment is deleted.
"""

from dataclasses import dataclass

from infra.checks.names import check_job_name
from infra.targets.kubernetes import (
    ON_DISRUPTION,
    USER,
    Document,
    labels,
    network_policy,
    on_exit,
)
from pipeline.store.errors import EXIT_USAGE

# Of Flink's releases the latest 1.x, which Beam's job server is made for.
FLINK = "1.20"
FLINK_IMAGE = "flink:1.20.4-java17"
JOB_SERVER_IMAGE = "apache/beam_flink1.20_job_server"
FLINK_USER = 9999
REST_PORT, JOB_PORT, ARTIFACT_PORT, POOL_PORT = 8081, 8099, 8098, 50000
# The account that the operator's chart makes for job managers, which start pods.
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
_MAIN = "flink-main-container"
_POOL = "apache_beam.runners.worker.worker_pool_main"
_GRACE_S = 60
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
    """What a cluster and its launcher are made from.

    Attributes:
        name: Of the cluster and of the Job.
        namespace: Kubernetes namespace, which the operator watches.
        account: Kubernetes service account of workers and launcher, bound to one of
            Google's.
        image: With the pipeline, from infra/containers/pipeline.Dockerfile.
        beam: Version of Beam in it; the job server has to be of the same.
        region: Of the cluster.
        arguments: Of ``python -m pipeline``, without Beam's.
        beam_arguments: More of Beam's own.
        workers: Task managers, a slot and a pool of workers each.
        collecting: Whether it collects, with one core, rather than shards, with two.
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
    """Checks the name of a cluster, to which Flink's operator appends its own."""
    return check_job_name(name, longest=45)


def flink_documents(job: FlinkJob) -> list[Document]:
    """Makes a Flink cluster and what runs the pipeline on it.

    Args:
        job: From what.

    Returns:
        A NetworkPolicy that lets the cluster's own pods and the operator reach its
        pods, the FlinkDeployment, and the launcher's Job.

    Raises:
        LaunchError: If its name is too long for its pods.
    """
    check_cluster_name(job.name)
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": labels(job.name),
    }
    return [
        # Who reaches Flink can have it run anything.
        network_policy(metadata, _FROM_OPERATOR),
        _cluster(job, metadata),
        _launcher(job, metadata),
    ]


def _cluster(job: FlinkJob, metadata: Document) -> Document:
    writable = ("/tmp", "/opt/flink/log")
    main = _container(
        {"name": _MAIN}, user=FLINK_USER, writable=writable, volumes="flink"
    )
    pool = _container(
        {
            "name": "beam-workers",
            "image": job.image,
            "command": ["python", "-m", _POOL, f"--service_port={POOL_PORT}"],
            # Started before the task manager, and again if the system ends it for
            # memory: Flink has its pods themselves never started again.
            "restartPolicy": "Always",
            "startupProbe": _listening(POOL_PORT),
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": _resources(
                cpu=1 if job.collecting else 2, memory_gi=2 if job.collecting else 3
            ),
        },
        user=USER,
        writable=("/tmp",),
        volumes="beam-workers",
    )
    template = _pod(job, [main], volumes=_volumes("flink", writable))
    workers = _pod(
        job,
        [main],
        volumes=[*_volumes("flink", writable), *_volumes("beam-workers", ("/tmp",))],
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
                # What is worth another try the launcher tries: see above.
                "restart-strategy.type": "none",
                "kubernetes.taskmanager.service-account": job.account,
                "resourcemanager.taskmanager-timeout": "30 s",
                # A task manager that is gone is noticed sooner than in a minute.
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
    await_cluster = _container(
        {
            "name": "await-cluster",
            "image": job.image,
            "command": ["python", "-c", _AWAIT, rest],
            "resources": _resources(cpu=1, memory_gi=1),
        },
        user=USER,
    )
    job_server = _container(
        {
            "name": "job-server",
            "image": server,
            "args": [
                f"--flink-master={rest}:{REST_PORT}",
                "--job-host=localhost",
                f"--job-port={JOB_PORT}",
                f"--artifact-port={ARTIFACT_PORT}",
                "--expansion-port=-1",
                "--artifacts-dir=/tmp/artifacts",
            ],
            "restartPolicy": "Always",
            "startupProbe": _listening(JOB_PORT, inside=True),
            "resources": _resources(cpu=1, memory_gi=2),
        },
        user=USER,
        writable=("/tmp",),
        volumes="job-server",
    )
    launcher = _container(
        {
            "name": "launcher",
            "image": job.image,
            "command": ["python", "-m", "pipeline"],
            "args": [
                *job.arguments,
                # From a pod that was lost: the Job lets one run.
                "--take-over",
                "--",
                *engine_arguments(
                    f"localhost:{JOB_PORT}",
                    f"localhost:{POOL_PORT}",
                    parallelism=job.workers,
                    flink_master=f"{rest}:{REST_PORT}",
                ),
                *job.beam_arguments,
            ],
            "env": [{"name": "HOME", "value": "/tmp"}],
            "resources": _resources(cpu=1, memory_gi=4),
        },
        user=USER,
        writable=("/tmp",),
        volumes="launcher",
    )
    pod = _pod(
        job,
        [launcher],
        before=[await_cluster, job_server],
        volumes=[*_volumes("job-server", ("/tmp",)), *_volumes("launcher", ("/tmp",))],
    )
    pod["spec"] |= {
        "restartPolicy": "Never",
        "serviceAccountName": job.account,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": _GRACE_S,
    }
    del pod["apiVersion"], pod["kind"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": 3,
            # One at a time: whoever takes over has seen the other end.
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    on_exit("FailJob", "launcher", (EXIT_USAGE,)),
                    ON_DISRUPTION,
                ]
            },
            "template": pod,
        },
    }


def engine_arguments(
    job_endpoint: str,
    workers_at: str,
    *,
    parallelism: int,
    flink_master: str | None = None,
) -> tuple[str, ...]:
    """Beam's arguments for Flink or Spark, by Beam's job server.

    Args:
        job_endpoint: ``HOST:PORT`` of the job server.
        workers_at: ``localhost:PORT`` of the pool beside each task manager or Spark
            worker, or the path of ``vast-rl-worker`` on its machine.
        parallelism: Of the job, on Flink; Spark takes what cores its workers have.
        flink_master: ``HOST:PORT`` of Flink's REST interface, by which the job is
            ended with its launcher; None of Spark.

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
        # Nothing is to be fetched by workers, least of all from the job server's disk.
        "--experiments=disable_logging_submission_environment",
        *(
            (f"--flink_master={flink_master}", f"--parallelism={parallelism}")
            if flink_master is not None
            else ()
        ),
    )


def _pod(
    job: FlinkJob,
    containers: list[Document],
    *,
    volumes: list[Document],
    before: list[Document] | None = None,
) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels(job.name)},
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


def _container(
    container: Document,
    *,
    user: int,
    writable: tuple[str, ...] = (),
    volumes: str = "",
) -> Document:
    """A container without rights, that writes where it has to and nowhere else."""
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
                    {"name": _volume(volumes, path), "mountPath": path}
                    for path in writable
                ]
            }
            if writable
            else {}
        ),
    }


def _volumes(name: str, paths: tuple[str, ...]) -> list[Document]:
    return [{"name": _volume(name, path), "emptyDir": {}} for path in paths]


def _volume(name: str, path: str) -> str:
    return f"{name}-{path.rpartition('/')[2]}"


def _listening(port: int, *, inside: bool = False) -> Document:
    """A probe; of what listens to its own pod alone, from within it."""
    how: Document = {"tcpSocket": {"port": port}}
    if inside:
        how = {
            "exec": {"command": ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"]}
        }
    return {**how, "periodSeconds": 2, "failureThreshold": 90}


def _resources(*, cpu: int, memory_gi: int) -> Document:
    memory = f"{memory_gi}Gi"
    return {
        "requests": {"cpu": str(cpu), "memory": memory},
        "limits": {"memory": memory},
    }
