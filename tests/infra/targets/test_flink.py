"""Flink's manifests follow published schemas, and do what their texts promise."""

import copy
import importlib.metadata

import jsonschema
import kubernetes_validate
import pytest

from infra.commands import pipeline as command
from infra.targets import flink
from infra.targets.kubernetes import USER
from pipeline import front_door
from pipeline.beam import runners
from pipeline.cli import PROGRAM
from pipeline.store.errors import EXIT_USAGE
from tests.infra.command_lines import FLINK_CLUSTER, PIPELINE, SHARD, documents
from tests.infra.flink_schema import FLINK_DEPLOYMENT

# The oldest version of Kubernetes with side-cars, and the newest with schemas here.
KUBERNETES = ("1.29", kubernetes_validate.latest_version())
JOBS = {
    "shard": f"{SHARD} {FLINK_CLUSTER} --max-workers 8",
    "collect": f"{PIPELINE} --episodes 1000 {FLINK_CLUSTER} --max-workers 40",
}


def check(document):
    """Raises if Kubernetes would refuse a document of its own kinds."""
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def check_cluster(cluster):
    """Raises if the operator or Kubernetes would refuse a cluster."""
    jsonschema.validate(cluster, FLINK_DEPLOYMENT)
    for manager in ("jobManager", "taskManager"):
        pod = copy.deepcopy(cluster["spec"][manager]["podTemplate"])
        pod["metadata"]["name"] = "pod"
        for container in pod["spec"]["containers"]:
            # The operator fills in the fields that are missing.
            container.setdefault("image", cluster["spec"]["image"])
        check(pod)


def pods(made):
    """All pods of a job, by their role."""
    _, cluster, job = made
    return {
        "job manager": cluster["spec"]["jobManager"]["podTemplate"],
        "task manager": cluster["spec"]["taskManager"]["podTemplate"],
        "launcher": job["spec"]["template"],
    }


def containers(pod):
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


@pytest.fixture(scope="module")
def jobs():
    return {name: documents(line) for name, line in JOBS.items()}


@pytest.mark.parametrize("name", JOBS)
def test_kubernetes_and_the_operator_take_the_manifests(jobs, name):
    policy, cluster, job = jobs[name]
    check(policy)
    check(job)
    check_cluster(cluster)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "flinkVersion"), "1.20"),
        (("spec", "serviceAccount"), ""),
        (("spec", "jobManager", "resource"), {}),
        (("spec", "taskManager", "resource", "memory"), "2Gi"),
        (("spec", "flinkConfiguration", "kubernetes.cluster-id"), "x"),
        (("metadata", "name"), "x" * 46),
        (("spec", "taskManager", "podTemplate", "spec", "containers"), [{}]),
        (("spec", "workers"), 3),
    ],
)
def test_the_schema_refuses_what_the_operator_would(jobs, path, value):
    cluster = copy.deepcopy(jobs["shard"][1])
    place = cluster
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    # The package of Kubernetes' schemas raises its own exception.
    with pytest.raises(
        (jsonschema.ValidationError, kubernetes_validate.ValidationError)
    ):
        check_cluster(cluster)


@pytest.mark.parametrize("name", JOBS)
def test_each_task_manager_has_a_pool_in_its_own_pod(jobs, name):
    _, cluster, job = jobs[name]
    pool = cluster["spec"]["taskManager"]["podTemplate"]["spec"]["initContainers"][0]
    # This policy makes it a side-car, started before the task manager and restarted.
    assert pool["restartPolicy"] == "Always"
    port = pool["command"][-1].partition("=")[2]
    assert pool["startupProbe"]["tcpSocket"]["port"] == int(port)
    assert cluster["spec"]["flinkConfiguration"]["taskmanager.numberOfTaskSlots"] == "1"
    (launcher,) = job["spec"]["template"]["spec"]["containers"]
    assert f"--environment_config=localhost:{port}" in launcher["args"]
    assert pool["image"] == launcher["image"]


def test_the_launcher_s_command_is_taken(jobs):
    for name, made in jobs.items():
        (launcher,) = made[-1]["spec"]["template"]["spec"]["containers"]
        assert launcher["command"] == ["python", "-m", "pipeline"]
        parsed, beam = front_door.parse(PROGRAM, launcher["args"])
        assert parsed.take_over
        assert parsed.out == "gs://vast-data/stores/cube-triple-play"
        given = runners.given_options(runners.make_options(1, beam))
        assert given["environment_type"] == "EXTERNAL"
        assert given["parallelism"] == (8 if name == "shard" else 40)
        cluster = made[1]["metadata"]["name"]
        # The operator gives this name to the service of a cluster.
        assert given["flink_master"] == f"{cluster}-rest:8081"
        server = made[-1]["spec"]["template"]["spec"]["initContainers"][1]
        assert f"--flink-master={given['flink_master']}" in server["args"]
        assert f"--job-port={given['job_endpoint'].partition(':')[2]}" in server["args"]


def test_flink_tries_nothing_again_and_kubernetes_no_wrong_use(jobs):
    _, cluster, job = jobs["shard"]
    assert cluster["spec"]["flinkConfiguration"]["restart-strategy.type"] == "none"
    first, lost = job["spec"]["podFailurePolicy"]["rules"]
    assert first["action"] == "FailJob"
    assert first["onExitCodes"]["values"] == [EXIT_USAGE]
    assert lost["action"] == "Ignore"
    # Ending the job in Flink takes up to twice 15 s.
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 45


@pytest.mark.parametrize("name", JOBS)
def test_nothing_runs_as_root_or_writes_where_it_need_not(jobs, name):
    for pod in pods(jobs[name]).values():
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert all(each["emptyDir"] == {} for each in volumes.values())
        used = []
        for container in containers(pod):
            context = container["securityContext"]
            assert context["runAsUser"] in (USER, flink.FLINK_USER)
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            used += [each["name"] for each in container.get("volumeMounts", [])]
        # No two containers share a volume.
        assert sorted(used) == sorted(volumes)


@pytest.mark.parametrize("name", JOBS)
def test_who_may_speak_to_kubernetes_has_no_data_and_the_other_way_round(jobs, name):
    _, cluster, _ = jobs[name]
    made = pods(jobs[name])
    for pod in ("task manager", "launcher"):
        assert made[pod]["spec"]["automountServiceAccountToken"] is False
    assert made["launcher"]["spec"]["serviceAccountName"] == "vast-pipeline"
    configuration = cluster["spec"]["flinkConfiguration"]
    assert configuration["kubernetes.taskmanager.service-account"] == "vast-pipeline"
    # The job manager starts pods, so it has the operator's account.
    assert cluster["spec"]["serviceAccount"] == "flink"


@pytest.mark.parametrize("name", JOBS)
def test_own_pods_and_the_operator_alone_are_let_in(jobs, name):
    policy, cluster, _ = jobs[name]
    own = {"matchLabels": policy["metadata"]["labels"]}
    assert (
        own["matchLabels"]["app.kubernetes.io/instance"]
        == (cluster["metadata"]["name"])
    )
    assert policy["spec"]["podSelector"] == own
    for pod in pods(jobs[name]).values():
        assert pod["metadata"]["labels"] == own["matchLabels"]
    inside, operator = policy["spec"]["ingress"]
    assert inside == {"from": [{"podSelector": own}]}
    (who,) = operator["from"]
    assert who["podSelector"]["matchLabels"] == {
        "app.kubernetes.io/name": "flink-kubernetes-operator"
    }
    assert operator["ports"] == [{"protocol": "TCP", "port": 8081}]


def test_versions_are_those_that_fit_together(jobs):
    assert importlib.metadata.version("apache-beam") == command._BEAM
    _, cluster, job = jobs["shard"]
    version = cluster["spec"]["flinkVersion"].removeprefix("v").replace("_", ".")
    assert cluster["spec"]["image"].startswith(f"flink:{version}.")
    server = job["spec"]["template"]["spec"]["initContainers"][1]
    assert server["image"] == f"apache/beam_flink{version}_job_server:{command._BEAM}"
