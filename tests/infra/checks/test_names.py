import pytest

from infra.checks import names
from infra.checks.names import BucketPath
from infra.errors import LaunchError


@pytest.mark.parametrize(
    ("path", "bucket", "folder"),
    [
        ("gs://vast-data", "vast-data", ""),
        ("gs://vast-data/", "vast-data", ""),
        ("gs://a.b_c-1/x/y z/", "a.b_c-1", "x/y z"),
        (f"gs://{'b' * 63}/x", "b" * 63, "x"),
    ],
)
def test_paths_come_apart_and_together(path, bucket, folder):
    parsed = names.parse_bucket_path(path)
    assert parsed == BucketPath(bucket, folder)
    assert str(parsed) == path.rstrip("/")
    assert parsed.name == folder.split("/")[-1]


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("stores/here", "expected gs://bucket/path"),
        ("s3://vast-data/x", "expected gs://bucket/path"),
        ("gs://", "has 0 characters"),
        ("gs://ab/x", "has 2 characters"),
        (f"gs://{'b' * 64}/x", "has 64 characters"),
        (f"gs://{'b' * 64}.c/x", "more than 63 characters between two dots"),
        ("gs://Vast-Data/x", "small letters"),
        ("gs://vast data/x", "small letters"),
        ("gs://-vast/x", "starts and ends with"),
        ("gs://vast-/x", "starts and ends with"),
        ("gs://va..st/x", "dot beside"),
        ("gs://va.-st/x", "dot beside"),
        ("gs://goog-data/x", "google"),
        ("gs://my-google-data/x", "google"),
        ("gs://192.168.5.4/x", "IP address"),
        ("gs://vast-data/a//b", "called ''"),
        ("gs://vast-data/a/../b", "called '..'"),
        ("gs://vast-data/a/b*", "called 'b*'"),
        ("gs://vast-data/a\nb", "called 'a\\nb'"),
        (f"gs://vast-data/{'é' * 513}", "got 1,026"),
    ],
)
def test_paths_that_the_service_would_refuse_are_refused_here(path, reason):
    with pytest.raises(LaunchError) as raised:
        names.parse_bucket_path(path)
    assert reason in str(raised.value)


@pytest.mark.parametrize("name", ["a", "cube-single-1", "x" * 20])
def test_names_of_jobs(name):
    assert names.check_job_name(name, longest=20) == name


@pytest.mark.parametrize("name", ["", "1cube", "Cube", "cube_1", "cube-", "x" * 21])
def test_names_that_are_no_label_are_refused(name):
    with pytest.raises(LaunchError, match="at most 20 characters"):
        names.check_job_name(name, longest=20)


def test_a_zone_is_answered_with_its_region():
    assert names.check_region("europe-west4") == "europe-west4"
    assert names.check_region("northamerica-northeast1") == "northamerica-northeast1"
    with pytest.raises(LaunchError, match="give its region, us-central1"):
        names.check_region("us-central1-a")
    for region in (None, "europe", "EUROPE-WEST4", "europe-west4;rm"):
        with pytest.raises(LaunchError, match="such as europe-west4"):
            names.check_region(region)


def test_projects_and_accounts():
    account = "vast-trainer@my-project.iam.gserviceaccount.com"
    assert names.check_project("my-project") == "my-project"
    assert names.check_service_account(account) == account
    for project in (None, "My-Project", "short", "my-project-"):
        with pytest.raises(LaunchError, match="--project"):
            names.check_project(project)
    for wrong in (None, "me@example.com", account.upper(), f"user:{account}"):
        with pytest.raises(LaunchError, match="--service-account"):
            names.check_service_account(wrong)


@pytest.mark.parametrize("tag", ["1.2.3", "1.2.3-rc1", "1.2.3@sha256:00ff"])
def test_images_of_the_version_here(tag):
    image = f"localhost:5000/vast/trainer:{tag}"
    assert names.check_image(image, version="1.2.3") == image


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (None, "expected REGISTRY/NAME:1.2.3"),
        ("localhost:5000/vast/trainer", "has no tag"),
        ("r/trainer@sha256:00ff", "has no tag to tell its version by"),
        ("r/trainer:latest", "got 'latest'"),
        ("r/trainer:1.2.30", "got '1.2.30'"),
        ("r/trainer:1.2.2", "got '1.2.2'"),
    ],
)
def test_images_of_another_version_are_refused(image, reason):
    with pytest.raises(LaunchError) as raised:
        names.check_image(image, version="1.2.3")
    assert reason in str(raised.value)


def test_addresses():
    assert names.check_address("flink:8099", "--x") == "flink:8099"
    for address in (None, "flink", "http://flink:8099", "flink:"):
        with pytest.raises(LaunchError, match="--x: expected HOST:PORT"):
            names.check_address(address, "--x")
