"""The doctor, with Google's own client, against servers on loopback."""

import contextlib
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from google.cloud.storage.retry import DEFAULT_RETRY

from infra.checks import bucket
from infra.cli import main
from infra.errors import LaunchError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# Location that the emulator gives to every bucket.
HERE = "us-central1"
Answer = tuple[int, Any]


@pytest.fixture(scope="module")
def there(gcs):
    return gcs.create_bucket("vast-doctor")


def findings(path: str, **options: Any) -> dict[str, bucket.Finding]:
    options = {"region": None, **options}
    return {each.what: each for each in bucket.examine(path, **options)}


def test_a_usable_folder_passes_and_is_left_as_it_was(there):
    there.blob("stores/one/dataset.json").upload_from_string("{}")
    found = findings("gs://vast-doctor/stores/one", region=HERE)
    assert [each.ok for each in found.values()] == [True] * 6
    assert list(found) == [
        "name",
        "clock",
        "credentials",
        "region",
        "permissions",
        "write",
    ]
    assert found["region"].detail == "US-CENTRAL1, where the job is"
    names = [blob.name for blob in there.list_blobs()]
    assert names == ["stores/one/dataset.json"]
    bucket.require("gs://vast-doctor/stores/one", region=HERE)


def test_reading_only_writes_nothing(there):
    found = findings("gs://vast-doctor/elsewhere", region=HERE, write=False)
    assert list(found)[-1] == "permissions"
    assert all(each.ok for each in found.values())


def test_another_region_is_refused(there, capsys):
    assert main(["doctor", "gs://vast-doctor/x", "--region", "europe-west4"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 3 + ["FAILED"]
    assert "in US-CENTRAL1 and the job in europe-west4" in lines[-1]
    with pytest.raises(LaunchError, match=r"^gs://vast-doctor/x: the bucket is in US-"):
        bucket.require("gs://vast-doctor/x", region="europe-west4")


def test_the_doctor_says_that_all_is_well(there, capsys):
    assert main(["doctor", "gs://vast-doctor/x"]) == 0
    output = capsys.readouterr().out
    assert output.count("ok ") == 6
    assert "give --region" in output


def test_a_bucket_that_is_not_there(there):
    found = findings("gs://vast-absent/x", region=HERE)
    assert not found["region"].ok
    assert "no such bucket; check the name" in found["region"].detail


def test_a_name_that_the_service_would_refuse_is_not_asked_for(capsys):
    assert main(["doctor", "gs://Vast/x"]) == 2
    assert "small letters" in capsys.readouterr().out
    assert main(["doctor", "gs://vast-doctor/x", "--region", "europe-west4-b"]) == 2
    assert "is a zone" in capsys.readouterr().err


# Tests with answers that the emulator never gives.


@contextlib.contextmanager
def answering(
    answer: Callable[[str, str], Answer], ahead_s: float = 0.0
) -> Iterator[str]:
    """Runs a server with given answers, whose clock may be ahead of ours."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(length)
            code, value = answer(self.command, self.path)
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response_only(code)
            self.send_header("Date", formatdate(time.time() + ahead_s, usegmt=True))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def error(code: int, message: str) -> Answer:
    return code, {"error": {"code": code, "message": message, "errors": []}}


def cloud(
    *,
    metadata: Answer = (200, {"location": "EUROPE-WEST4"}),
    granted: tuple[str, ...] = bucket.PERMISSIONS,
    listing: Answer = (200, {}),
    upload: Answer = (200, {"name": "x", "generation": "1"}),
) -> Callable[[str, str], Answer]:
    """A service with one bucket."""

    def answer(method: str, path: str) -> Answer:
        if method == "POST":
            return upload
        if "iam/testPermissions" in path:
            return 200, {"permissions": list(granted)}
        if path.startswith("/storage/v1/b/vast-data/o?"):
            return listing
        if path.startswith("/storage/v1/b/vast-data?"):
            return metadata
        return error(404, "not here")

    return answer


def diagnose(monkeypatch: Any, **options: Any) -> dict[str, bucket.Finding]:
    region = options.pop("region", "europe-west4")
    write = options.pop("write", False)
    ahead_s = options.pop("ahead_s", 0.0)
    with answering(cloud(**options), ahead_s) as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        return findings("gs://vast-data/runs", region=region, write=write)


def last(found: dict[str, bucket.Finding]) -> bucket.Finding:
    assert all(each.ok for each in list(found.values())[:-1])
    return list(found.values())[-1]


@pytest.mark.parametrize(
    ("location", "pair", "region", "ok"),
    [
        ("EUROPE-WEST4", None, "europe-west4", True),
        ("EU", None, "europe-west1", True),
        ("US", None, "us-east4", True),
        ("EUR4", None, "europe-north1", True),
        ("EU", ["EUROPE-WEST1", "EUROPE-WEST9"], "europe-west9", True),
        ("EU", ["EUROPE-WEST1", "EUROPE-WEST9"], "europe-west4", True),
        ("EU", None, "us-east4", False),
        ("EUR4", None, "europe-west1", False),
        ("US-EAST1", None, "us-east4", False),
    ],
)
def test_regions_that_hold_a_bucket(location, pair, region, ok, monkeypatch):
    value: dict[str, Any] = {"location": location}
    if pair is not None:
        value["customPlacementConfig"] = {"dataLocations": pair}
    found = diagnose(monkeypatch, metadata=(200, value), region=region)
    assert found["region"].ok is ok


def test_a_clock_that_is_off_is_found_before_anything_else(monkeypatch):
    for ahead_s, side in ((600, "behind"), (-600, "ahead")):
        found = last(diagnose(monkeypatch, ahead_s=ahead_s))
        assert found.what == "clock"
        assert not found.ok
        assert side in found.detail
        seconds = re.search(r" (\d+) s ", found.detail)
        assert seconds is not None
        assert abs(int(seconds[1]) - 600) < 60
    assert last(diagnose(monkeypatch, ahead_s=5)).ok


def test_missing_permissions_are_named(monkeypatch):
    found = last(diagnose(monkeypatch, granted=bucket.PERMISSIONS))
    assert (found.what, found.ok) == ("permissions", True)
    assert found.detail == "2 of 2 on the bucket"
    message = "vast-trainer does not have storage.objects.list access"
    found = last(diagnose(monkeypatch, granted=(), listing=error(403, message)))
    assert not found.ok
    assert message in found.detail
    # With grants on the folder only, the bucket's own list of permissions is empty.
    found = last(diagnose(monkeypatch, granted=()))
    assert found.ok
    assert "storage.objects.get" in found.detail


def test_a_region_that_may_not_be_seen(monkeypatch):
    hidden = error(403, "vast-trainer does not have storage.buckets.get access")
    found = last(diagnose(monkeypatch, metadata=hidden))
    assert "roles/storage.bucketViewer" in found.detail
    assert last(diagnose(monkeypatch, metadata=hidden, region=None)).ok


def test_writing_that_is_not_allowed(monkeypatch):
    message = "vast-trainer does not have storage.objects.create access"
    found = last(diagnose(monkeypatch, write=True, upload=error(403, message)))
    assert (found.what, found.ok) == ("write", False)
    assert message in found.detail
    assert "setup_bucket.sh" in found.detail


def test_quota(monkeypatch):
    # The timeout limits all attempts together, not each of them.
    monkeypatch.setattr(bucket, "_retry", lambda: DEFAULT_RETRY.with_timeout(0.2))
    busy = error(429, "rate of requests exceeded")
    found = last(diagnose(monkeypatch, metadata=busy))
    assert found.detail.startswith("over quota: ")
    assert "rate of requests exceeded" in found.detail


def test_a_server_that_keeps_no_preconditions(monkeypatch):
    written = []

    def answer(method: str, path: str) -> Answer:
        if method == "DELETE":
            return 200, {}
        if "alt=media" in path:
            return 200, written[0]
        return cloud()(method, path)

    class Fixed:
        hex = "probe"

        def __str__(self) -> str:
            return "probe"

    monkeypatch.setattr(uuid, "uuid4", Fixed)
    written.append(b"probe")
    with answering(answer) as url:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        found = last(findings("gs://vast-data/runs", region="europe-west4"))
    assert not found.ok
    assert "does not keep preconditions" in found.detail


def test_a_server_that_cannot_be_reached(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    found = last(findings("gs://vast-data/runs"))
    assert (found.what, found.ok) == ("clock", False)
    assert "cannot be reached" in found.detail


@pytest.fixture
def without_credentials(monkeypatch, tmp_path):
    """Acts as a machine outside Google's cloud without a login."""
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")


def test_no_credentials(without_credentials, monkeypatch):
    with answering(cloud()) as url:
        monkeypatch.setattr(bucket, "_SERVICE", url)
        found = last(findings("gs://vast-data/runs"))
    assert (found.what, found.ok) == ("credentials", False)
    assert found.detail.startswith("no credentials for Google Cloud here; run `gcloud")


def test_credentials_that_were_withdrawn(without_credentials, monkeypatch, tmp_path):
    def answer(method: str, path: str) -> Answer:
        refusal = {"error": "invalid_grant", "error_description": "Token was revoked."}
        return (400, refusal) if path == "/token" else (200, {})

    with answering(answer) as url:
        person = {
            "type": "authorized_user",
            "client_id": "x",
            "client_secret": "x",
            "refresh_token": "x",
        }
        file = tmp_path / "person.json"
        file.write_text(json.dumps(person))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        monkeypatch.setattr(
            "google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{url}/token"
        )
        monkeypatch.setattr(bucket, "_SERVICE", url)
        found = last(findings("gs://vast-data/runs"))
    assert not found.ok
    assert "no longer valid" in found.detail
    assert "Token was revoked." in found.detail
