"""Checks that a job can use a folder on Cloud Storage, before it costs money.

The checks use Google's client and the credentials of this machine. Like all clients of
Google's, they follow ``STORAGE_EMULATOR_HOST``.
"""

import email.utils
import os
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from infra.checks.names import BucketPath, parse_bucket_path
from infra.errors import LaunchError

PERMISSIONS = tuple(
    f"storage.objects.{verb}" for verb in ("list", "get", "create", "delete")
)
_READING = PERMISSIONS[:2]
# Google refuses tokens from a clock that is minutes wrong, and leases of coordinators
# last tens of seconds.
_LARGEST_SKEW_S = 30.0
_TIMEOUT_S = 10.0
_SERVICE = "https://storage.googleapis.com"
# Regions of locations that are more than one region. Custom pairs of regions are not
# here, because such a bucket lists its regions itself.
_MULTI_REGIONS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
_DUAL_REGIONS = {
    "ASIA1": ("asia-northeast1", "asia-northeast2"),
    "EUR4": ("europe-north1", "europe-west4"),
    "EUR5": ("europe-west1", "europe-west2"),
    "EUR7": ("europe-west2", "europe-west3"),
    "EUR8": ("europe-west3", "europe-west6"),
    "NAM4": ("us-central1", "us-east1"),
}


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: Name of the check.
        ok: Whether it succeeded.
        detail: Observation of the check, and after a failure what to do.
    """

    what: str
    ok: bool
    detail: str


class _FailedError(Exception):
    """A check failed; the message is the detail of its finding."""


def require(path: str, *, region: str | None, write: bool = True) -> None:
    """Refuses a folder that a job cannot use.

    Args:
        path: Folder, as ``gs://bucket/path``.
        region: Region of the job; None for any.
        write: Whether the folder must be writable.

    Raises:
        LaunchError: If a check fails; the message is that of the first one.
    """
    for finding in examine(path, region=region, write=write):
        if not finding.ok:
            raise LaunchError(f"{path}: {finding.detail}")


def examine(path: str, *, region: str | None, write: bool = True) -> Iterator[Finding]:
    """Checks a folder, up to the first check that fails.

    Args:
        path: Folder, as ``gs://bucket/path``; only the bucket must exist.
        region: Region of the job; None for any.
        write: Whether the folder must be writable. If so, a small file is written, read
            and deleted.

    Yields:
        The result of each check as soon as it is known: name, clock, credentials,
        region, permissions, and write.
    """
    # In this order because later checks fail for the reasons of earlier ones: a wrong
    # clock, for example, looks like wrong credentials.
    what = "name"
    try:
        target = parse_bucket_path(path)
        yield Finding(what, True, f"{target} is one Cloud Storage takes")
        what = "clock"
        yield Finding(what, True, _check_clock())
        what = "credentials"
        client = _client()
        yield Finding(what, True, _describe_identity(client))
        what = "region"
        bucket = client.bucket(target.bucket)
        yield Finding(what, True, _check_region(bucket, region))
        what = "permissions"
        yield Finding(what, True, _check_permissions(bucket, target, write))
        if write:
            what = "write"
            yield Finding(what, True, _probe(bucket, target))
    except (_FailedError, LaunchError) as error:
        yield Finding(what, False, str(error))
    except Exception as error:
        # Google's client raises errors of four libraries; those that `_explain` does
        # not know are faults of ours and keep their traceback.
        explanation = _explain(error, path)
        if explanation is None:
            raise
        yield Finding(what, False, explanation)


def _check_clock() -> str:
    """Compares this machine's clock with the date of an answer of the server."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", _SERVICE)
    url = host if "://" in host else f"http://{host}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        # The service refuses a request without credentials, with the date.
        with error:
            headers = error.headers
    except (urllib.error.URLError, TimeoutError) as error:
        reason = getattr(error, "reason", error)
        raise _FailedError(
            f"{url} cannot be reached from here: {reason}; check the network and its "
            "proxies"
        ) from error
    stamp = headers.get("Date")
    if stamp is None:
        raise _FailedError(
            f"{url}: expected an answer with a date, got one without; check that "
            "STORAGE_EMULATOR_HOST and proxies lead to Cloud Storage"
        )
    ahead_s = time.time() - email.utils.parsedate_to_datetime(stamp).timestamp()
    if abs(ahead_s) > _LARGEST_SKEW_S:
        side = "ahead" if ahead_s > 0 else "behind"
        raise _FailedError(
            f"this clock is {abs(ahead_s):,.0f} s {side}, and tokens are refused from "
            f"{_LARGEST_SKEW_S:.0f} s on; set it by NTP"
        )
    return f"within {max(1.0, abs(ahead_s)):.0f} s of the server's"


def _client() -> Any:
    from google.cloud import storage

    # Without a project, because no request here needs one and credentials may not
    # name any.
    return storage.Client(project=None)


def _describe_identity(client: Any) -> str:
    if "STORAGE_EMULATOR_HOST" in os.environ:
        return "none, on an emulator"
    account = getattr(client._credentials, "service_account_email", None)
    return f"of {account or 'a person'}"


def _retry() -> Any:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return DEFAULT_RETRY.with_timeout(_TIMEOUT_S)


def _check_permissions(bucket: Any, target: BucketPath, write: bool) -> str:
    """Asks for permissions on the bucket; without them, tries to list the folder."""
    from google.api_core import exceptions

    wanted = PERMISSIONS if write else _READING
    try:
        granted = bucket.test_iam_permissions(list(wanted), timeout=_TIMEOUT_S)
    except exceptions.NotFound:
        # Emulators do not implement permissions.
        granted = ()
    missing = [permission for permission in wanted if permission not in granted]
    if not missing:
        return f"{len(wanted)} of {len(wanted)} on the bucket"
    # A grant on a folder does not show in the bucket's permissions, but listing the
    # folder succeeds with it.
    prefix = f"{target.folder}/" if target.folder else None
    list(bucket.client.list_blobs(bucket, prefix=prefix, max_results=1, retry=_retry()))
    return f"{', '.join(missing)} not on the whole bucket; this folder can be listed"


def _check_region(bucket: Any, region: str | None) -> str:
    from google.api_core import exceptions

    try:
        bucket.reload(retry=_retry(), timeout=_TIMEOUT_S)
    except exceptions.Forbidden:
        # Roles for objects, which are all that a job needs, do not include the bucket's
        # metadata.
        if region is None:
            return "not visible to these credentials, and none was asked for"
        raise _FailedError(
            f"the region of {bucket.name} is not visible: storage.buckets.get is "
            "missing; grant roles/storage.bucketViewer on the bucket"
        ) from None
    location = str(bucket.location).upper()
    if region is None:
        return f"{location}; not compared with that of a job: give --region"
    regions = tuple(
        name.lower()
        for name in (bucket.data_locations or _DUAL_REGIONS.get(location, (location,)))
    )
    multi = _MULTI_REGIONS.get(location)
    if region in regions or (multi is not None and region.startswith(multi)):
        return f"{location}, where the job is"
    raise _FailedError(
        f"the bucket is in {location} and the job in {region}: reading across regions "
        "is slow and billed by the byte; run the job in the bucket's region, or use a "
        "bucket in the job's"
    )


def _probe(bucket: Any, target: BucketPath) -> str:
    """Writes, reads and deletes a file, and checks that a precondition holds."""
    from google.api_core import exceptions

    name = "/".join(part for part in (target.folder, f".doctor-{uuid.uuid4()}") if part)
    blob = bucket.blob(name)
    content = uuid.uuid4().hex

    def write() -> None:
        blob.upload_from_string(
            content, if_generation_match=0, retry=_retry(), timeout=_TIMEOUT_S
        )

    write()
    try:
        if blob.download_as_text(retry=_retry(), timeout=_TIMEOUT_S) != content:
            raise _FailedError(
                f"{name}: expected the bytes that were written, got others; check what "
                "lies between this machine and Cloud Storage"
            )
        try:
            # A second writer must be refused: this precondition is what keeps two
            # processes from committing over each other.
            write()
        except exceptions.PreconditionFailed:
            pass
        else:
            raise _FailedError(
                f"{name}: written twice though it was to be written only if absent; "
                "this server does not keep preconditions: use Cloud Storage itself"
            )
    finally:
        blob.delete(retry=_retry(), timeout=_TIMEOUT_S)
    return "a file written, read, kept from being overwritten, and deleted"


def _explain(error: Exception, path: str) -> str | None:
    """Describes an error of Google's client in one line; None for other errors."""
    import requests
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    if isinstance(error, exceptions.RetryError) and error.cause is not None:
        return _explain(error.cause, path)
    if isinstance(error, auth.DefaultCredentialsError):
        return (
            "no credentials for Google Cloud here; run `gcloud auth "
            "application-default login`, or run this where a service account is "
            "attached"
        )
    if isinstance(error, auth.RefreshError):
        return (
            f"the credentials here are no longer valid ({_first_line(error)}); run "
            "`gcloud auth application-default login` again"
        )
    if isinstance(error, exceptions.NotFound):
        return (
            f"no such bucket; check the name in {path}, or make it with "
            "infra/setup_bucket.sh"
        )
    if isinstance(error, exceptions.Unauthorized):
        return (
            f"the server did not accept the credentials: {error.message}; run `gcloud "
            "auth application-default login`"
        )
    if isinstance(error, exceptions.Forbidden):
        return (
            f"not allowed: {error.message}; infra/setup_bucket.sh grants what a job "
            "needs"
        )
    if isinstance(error, exceptions.TooManyRequests):
        return f"over quota: {error.message}; wait, or ask for more"
    if isinstance(error, exceptions.GoogleAPICallError):
        return f"Cloud Storage answered {error.code}: {error.message}; try again later"
    if isinstance(error, (auth.TransportError, requests.RequestException)):
        return (
            f"Cloud Storage cannot be reached from here: {_first_line(error)}; check "
            "the network and its proxies"
        )
    return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
