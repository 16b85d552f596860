"""Names that somebody else's service has to accept, checked before it is asked.

Every function returns what it was given if the name can be used, and raises
`LaunchError` with what is wrong with it if not. Nothing here touches the network.
"""

import ipaddress
import re
from dataclasses import dataclass

from infra.errors import LaunchError

# RFC 1035, which Kubernetes asks of a JobSet's name and Dataflow of a job's.
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]*[a-z0-9]")
_PROJECT = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")
_ZONE = re.compile(r"(?P<region>[a-z]+-[a-z]+[0-9]{1,2})-[a-z]")
_ACCOUNT = re.compile(
    r"[a-z][-a-z0-9]{4,28}[a-z0-9]@[a-z][-a-z0-9.]+\.iam\.gserviceaccount\.com"
)
_ADDRESS = re.compile(r"[A-Za-z0-9][-.A-Za-z0-9]*:[0-9]{1,5}")


@dataclass(frozen=True)
class BucketPath:
    """A folder on Cloud Storage.

    Attributes:
        bucket: Name of the bucket.
        folder: Path within it, without slashes around it; empty for the bucket itself.
    """

    bucket: str
    folder: str

    @property
    def name(self) -> str:
        """Last part of the folder."""
        return self.folder.rpartition("/")[2]

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.folder}".rstrip("/")


def parse_bucket_path(path: str) -> BucketPath:
    """Takes ``gs://bucket/path`` apart.

    Args:
        path: As given.

    Returns:
        Its parts.

    Raises:
        LaunchError: If Cloud Storage would refuse one of them.

    Example:
        >>> parse_bucket_path("gs://vast-data/stores/cube/")
        BucketPath(bucket='vast-data', folder='stores/cube')
    """
    if not path.startswith("gs://"):
        raise LaunchError(f"{path}: expected gs://bucket/path")
    bucket, _, folder = path.removeprefix("gs://").partition("/")
    _check_bucket(bucket, path)
    folder = folder.strip("/")
    if len(folder.encode()) > 1024:
        raise LaunchError(
            f"{path[:60]}...: Cloud Storage takes names of up to 1,024 bytes, got "
            f"{len(folder.encode()):,}"
        )
    for part in folder.split("/") if folder else ():
        # Allowed by the service, but wildcards to gcloud and to our own globs.
        odd = sorted(set(part) & set("*?[]#\r\n"))
        if part in ("", ".", "..") or odd or not part.isprintable():
            raise LaunchError(
                f"{path!r}: a folder called {part!r} cannot be used on Cloud Storage; "
                "leave out empty parts, dots alone, and * ? [ ] #"
            )
    return BucketPath(bucket, folder)


def parse_run(out: str) -> BucketPath:
    """Takes the folder of a run apart, which processes on several machines reach.

    Raises:
        LaunchError: If it cannot be used, or is a whole bucket.
    """
    path = parse_bucket_path(out)
    if not path.folder:
        raise LaunchError(f"expected the run's folder as gs://bucket/RUN, got {out}")
    return path


def in_buckets(*paths: str) -> tuple[str, ...]:
    """Those of some paths that are on an object store, checked as names there.

    Example:
        >>> in_buckets("runs/one", "gs://vast-data/runs/one")
        ('gs://vast-data/runs/one',)
    """
    remote = tuple(path for path in paths if "://" in path)
    for path in remote:
        parse_bucket_path(path)
    return remote


def _check_bucket(bucket: str, path: str) -> None:
    """Cloud Storage's rules for names of buckets."""
    reason = None
    if not 3 <= len(bucket) <= (222 if "." in bucket else 63):
        reason = f"has {len(bucket)} characters, where 3 to 63 are allowed"
    elif any(len(part) > 63 for part in bucket.split(".")):
        reason = "has more than 63 characters between two dots"
    elif not _BUCKET.fullmatch(bucket):
        reason = (
            "may hold small letters, digits, - _ and . only, and starts and ends "
            "with a letter or digit"
        )
    elif ".." in bucket or ".-" in bucket or "-." in bucket:
        reason = "has a dot beside another dot or a dash"
    elif bucket.startswith("goog") or "google" in bucket or "g00gle" in bucket:
        reason = "starts with goog or holds google, which Cloud Storage keeps"
    elif _is_address(bucket):
        reason = "is an IP address"
    if reason is not None:
        raise LaunchError(f"{path}: the bucket's name {bucket!r} {reason}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


def check_job_name(name: str, *, longest: int, option: str = "--name") -> str:
    """Checks the name of a job.

    Args:
        name: As given.
        longest: Characters it may have: less than the service's 63 where the service
            appends something.
        option: That it was given with.

    Returns:
        The name.

    Raises:
        LaunchError: If it cannot be used.
    """
    if not _LABEL.fullmatch(name) or len(name) > longest:
        raise LaunchError(
            f"{option}: expected small letters, digits and dashes, a letter first and "
            f"at most {longest} characters, got {name!r}"
        )
    return name


def check_project(project: str | None) -> str:
    """Checks a Google Cloud project's id, which has to be given."""
    if project is None:
        raise LaunchError("--project: expected the id of a Google Cloud project")
    if not _PROJECT.fullmatch(project):
        raise LaunchError(
            f"--project: expected an id such as my-project-1, got {project!r}; "
            "`gcloud projects list` shows them"
        )
    return project


def check_region(region: str | None) -> str:
    """Checks a region, which has to be given; a zone is answered with its region."""
    if region is None:
        raise LaunchError("--region: expected a region such as europe-west4")
    zone = _ZONE.fullmatch(region)
    if zone is not None:
        raise LaunchError(
            f"--region: {region} is a zone; its region is {zone['region']}"
        )
    if not _REGION.fullmatch(region):
        raise LaunchError(
            f"--region: expected a region such as europe-west4, got {region!r}"
        )
    return region


def check_subnetwork(name: str | None) -> str | None:
    """Checks the name of a subnetwork, if one is given: its region is the job's."""
    if name is not None and not (_LABEL.fullmatch(name) and len(name) <= 63):
        raise LaunchError(
            "--subnetwork: expected its name alone, of small letters, digits and "
            f"dashes, a letter first, got {name!r}"
        )
    return name


def check_service_account(account: str | None) -> str:
    """Checks a service account's address, which has to be given."""
    if account is None:
        raise LaunchError(
            "--service-account: expected the account the job runs as, such as "
            "vast-pipeline@PROJECT.iam.gserviceaccount.com; infra/setup_bucket.sh "
            "makes it. Without one the job would run as the project's default account, "
            "which may do far more than it needs"
        )
    if not _ACCOUNT.fullmatch(account):
        raise LaunchError(
            "--service-account: expected NAME@PROJECT.iam.gserviceaccount.com, got "
            f"{account!r}"
        )
    return account


def check_address(address: str | None, option: str) -> str:
    """Checks a HOST:PORT, which has to be given."""
    if address is None or not _ADDRESS.fullmatch(address):
        raise LaunchError(f"{option}: expected HOST:PORT, got {address!r}")
    return address


def check_workers(place: str) -> str:
    """Checks where an engine's machines find their workers: each on its own.

    Args:
        place: ``localhost:PORT``, or a path.

    Returns:
        The place.

    Raises:
        LaunchError: If it is neither, or is somewhere else.
    """
    if place.startswith("/"):
        if set(place) & set('"\\') or not place.isprintable():
            raise LaunchError(f"--workers-at: expected a plain path, got {place!r}")
        return place
    host, _, _ = check_address(place, "--workers-at").partition(":")
    if host not in ("localhost", "127.0.0.1"):
        raise LaunchError(
            f"--workers-at: expected localhost:PORT or the path of vast-rl-worker, got "
            f"{place!r}; one pool cannot serve several task managers, for they call "
            "their workers alike: start one beside each"
        )
    return place


def check_image(image: str | None, *, version: str) -> str:
    """Checks that an image says it holds the version that launches it.

    Workers of another version would fail after they were paid for, or write a store
    this one cannot read.

    Args:
        image: ``REGISTRY/NAME:TAG``.
        version: Of the package here.

    Returns:
        The image.

    Raises:
        LaunchError: If its tag is not that version.
    """
    if image is None:
        raise LaunchError(
            f"--image: expected REGISTRY/NAME:{version}; infra/containers/ has the "
            "recipes"
        )
    name, _, digest = image.partition("@")
    _, _, tag = name.rpartition("/")[2].partition(":")
    if not tag:
        raise LaunchError(
            f"--image: {image} has no tag"
            + (" to tell its version by" if digest else "")
            + f"; expected one of {version}, the version here"
        )
    if tag != version and not tag.startswith(f"{version}-"):
        raise LaunchError(
            f"--image: {image} does not hold the version here; expected a tag of "
            f"{version} or {version}-SUFFIX, got {tag!r}: build and push it from this "
            "checkout"
        )
    return image
