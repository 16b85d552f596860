"""Manifests follow Kubernetes' schemas, and do what their texts promise."""

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from infra.targets.jobset import COORDINATOR_PORT
from infra.targets.kubernetes import USER
from pipeline.store.errors import EXIT_USAGE
from tests.infra.command_lines import EVALUATE_GKE, GPU, TPU, documents
from tests.infra.jobset_schema import JOB_SET
from trainer.errors import EXIT_DIVERGED, EXIT_PREEMPTED
from trainer.parallel.roll_call import Place

# The oldest version of Kubernetes for JobSets with BlockingRecreate, and the newest
# with schemas here.
KUBERNETES = ("1.30", kubernetes_validate.latest_version())
SETS = {
    "one machine": f"{GPU} --chips 8",
    "two machines": f"{GPU} --chips 16 --spot",
    "one TPU": f"{TPU} --chips 4",
    "a slice": f"{TPU} --chips 16",
    "another agent": f"{GPU} --chips 8 -- --agent fql".replace(
        "tests/infra/run.toml", "configs/cube-single-play.toml"
    ),
}


def check(document: Any) -> None:
    """Raises if Kubernetes would refuse a document of its own kinds."""
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def check_job_set(document: Any) -> None:
    """Raises if Kubernetes would refuse a JobSet or a job in it."""
    jsonschema.validate(document, JOB_SET)
    for replicated in document["spec"]["replicatedJobs"]:
        metadata = {"name": replicated["name"]}
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        check({**head, **replicated["template"]})


def take_apart(job_set: Any) -> tuple[Any, Any, Any]:
    """The job of a set, its pod, and the pod's container."""
    (replicated,) = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    return job, pod, container


@pytest.fixture(scope="module")
def sets() -> dict[str, list[Any]]:
    return {name: documents(command) for name, command in SETS.items()}


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_takes_the_manifests(sets, name):
    config_map, policy, job_set = sets[name]
    check(config_map)
    check(policy)
    check_job_set(job_set)


def test_kubernetes_takes_the_evaluation_job():
    (job,) = documents(EVALUATE_GKE)
    check(job)
    limits = job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert set(limits) == {"memory"}


def test_the_checks_can_fail(sets):
    *_, job_set = sets["two machines"]
    wrong = copy.deepcopy(job_set)
    wrong["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(jsonschema.ValidationError, match="maxRestart"):
        check_job_set(wrong)
    wrong = copy.deepcopy(job_set)
    wrong["spec"]["failurePolicy"]["rules"][0]["action"] = "FailJob"
    with pytest.raises(jsonschema.ValidationError, match="FailJob"):
        check_job_set(wrong)
    wrong = copy.deepcopy(job_set)
    take_apart(wrong)[1]["terminationGracePeriodSecond"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        check_job_set(wrong)
    wrong = copy.deepcopy(job_set)
    rules = take_apart(wrong)[0]["podFailurePolicy"]["rules"]
    rules[0]["onExitCodes"]["values"] = "2"
    with pytest.raises(kubernetes_validate.ValidationError):
        check_job_set(wrong)


@pytest.mark.parametrize("name", SETS)
def test_exit_codes_mean_what_the_trainer_means_by_them(sets, name):
    *_, job_set = sets[name]
    job, pod, container = take_apart(job_set)
    # A policy on exit codes requires that pods are not restarted in place.
    assert pod["restartPolicy"] == "Never"
    by_action: dict[str, set[int]] = {}
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes is not None:
            assert codes["containerName"] == container["name"]
            assert codes["operator"] == "In"
            by_action.setdefault(rule["action"], set()).update(codes["values"])
    assert by_action == {
        "FailJob": {EXIT_USAGE, EXIT_DIVERGED},
        "Ignore": {EXIT_PREEMPTED},
    }
    disrupted = job["podFailurePolicy"]["rules"][-1]
    assert disrupted["action"] == "Ignore"
    assert disrupted["onPodConditions"] == [
        {"type": "DisruptionTarget", "status": "True"}
    ]
    # Any other exit code fails the job at once, and the set restarts, unless a rule
    # above has failed the job.
    assert job["backoffLimit"] == 0
    policy = job_set["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    (rule,) = policy["rules"]
    assert rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]


@pytest.mark.parametrize(("name", "hosts"), [("two machines", 2), ("a slice", 4)])
def test_processes_find_each_other(sets, name, hosts):
    *_, job_set = sets[name]
    job, _, container = take_apart(job_set)
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == hosts
    environment = {each["name"]: each for each in container["env"]}
    assert environment["VAST_NUM_PROCESSES"]["value"] == str(hosts)
    source = environment["VAST_PROCESS_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert source == (
        "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    )
    # Kubernetes puts this label on all pods of a Job; the next Job gets another value.
    assert environment["VAST_TOKEN"]["valueFrom"]["fieldRef"]["fieldPath"] == (
        "metadata.labels['batch.kubernetes.io/controller-uid']"
    )
    # JobSet calls a pod SET-JOB-REPLICA-INDEX, a name within the set's subdomain.
    network = job_set["spec"]["network"]
    assert network["enableDNSHostnames"] is True
    (replicated,) = job_set["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    first = f"{job_set['metadata']['name']}-{replicated['name']}-0-0"
    assert environment["VAST_COORDINATOR_ADDRESS"]["value"] == (
        f"{first}.{network['subdomain']}:{COORDINATOR_PORT}"
    )
    assert container["ports"][0]["containerPort"] == COORDINATOR_PORT


@pytest.mark.parametrize("name", SETS)
def test_pods_of_the_set_alone_are_let_in(sets, name):
    _, policy, job_set = sets[name]
    (replicated,) = job_set["spec"]["replicatedJobs"]
    labels = replicated["template"]["spec"]["template"]["metadata"]["labels"]
    own = {"podSelector": {"matchLabels": labels}}
    # The pods of another set have other labels.
    assert labels["app.kubernetes.io/instance"] == job_set["metadata"]["name"]
    assert policy["metadata"]["namespace"] == job_set["metadata"]["namespace"]
    assert policy["spec"] == {
        **own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own]}],
    }


def test_one_process_has_nobody_to_find(sets):
    for name in ("one machine", "one TPU"):
        container = take_apart(sets[name][-1])[2]
        assert not any(each["name"].startswith("VAST_") for each in container["env"])


@pytest.mark.parametrize("name", SETS)
def test_processors_do_not_train_in_place_of_chips(sets, name):
    _, _, container = take_apart(sets[name][-1])
    (resource,) = container["resources"]["limits"]
    platform = {"nvidia.com/gpu": "cuda", "google.com/tpu": "tpu"}[resource]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["JAX_PLATFORMS"] == f"{platform},cpu"


def test_processes_wait_for_nodes_that_are_added_slowly(sets):
    _, _, container = take_apart(sets["two machines"][-1])
    environment = {each["name"]: each.get("value") for each in container["env"]}
    place = Place.read(
        {
            **{name: text for name, text in environment.items() if text is not None},
            "VAST_PROCESS_ID": "1",
        }
    )
    assert place is not None
    assert place.timeout >= 1800


def test_chips_are_asked_for_as_gke_names_them(sets):
    _, pod, container = take_apart(sets["two machines"][-1])
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert pod["nodeSelector"] == {
        "topology.kubernetes.io/region": "europe-west4",
        "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
        "cloud.google.com/gke-spot": "true",
    }
    _, pod, container = take_apart(sets["a slice"][-1])
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["nodeSelector"] == {
        "topology.kubernetes.io/region": "europe-west4",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    exclusive = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    annotations = sets["a slice"][-1]["metadata"]["annotations"]
    assert annotations == {exclusive: "cloud.google.com/gke-nodepool"}
    assert "annotations" not in sets["two machines"][-1]["metadata"]


@pytest.mark.parametrize("name", SETS)
def test_nothing_runs_as_root_or_holds_a_key(sets, name):
    _, pod, container = take_apart(sets[name][-1])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == USER
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    # The bucket is not mounted; the pod's account gives access to it.
    assert pod["serviceAccountName"] == "vast-trainer"
    assert {each["name"] for each in pod["volumes"]} <= {"config", "shm"}
    out = container["args"][container["args"].index("--out") + 1]
    assert out == "gs://vast-data/runs/cube-single-1"
    # The manifest has the token's name and its source, but not the token.
    text = str(sets[name]).lower().replace("vast_token", "")
    assert not [word for word in ("secret", "token", "password") if word in text]


def test_names_of_pods_are_names_of_hosts():
    longest = 63 - len("-trainer-0-1-xxxxx")
    *_, job_set = documents(f"{GPU} --chips 16 --name {'x' * longest}")
    assert len(job_set["metadata"]["name"]) == longest
