"""Checks names by the rules of the services that have to accept them.

Every check returns the name that it was given, or raises `LaunchError` with what is
wrong. A service would refuse the same names, but after minutes and in its own words.
Nothing here uses the network.
"""

import hashlib
import ipaddress
import re
from dataclasses import dataclass

from infra.errors import LaunchError

# Labels of RFC 1035: Kubernetes requires one for a JobSet, and Dataflow for a job.
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
        folder: Path within the bucket, without slashes at the ends; empty for the
            bucket itself.
    """

    bucket: str
    folder: str

    @property
    def name(self) -> str:
        """Last component of the folder."""
        return self.folder.rpartition("/")[2]

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.folder}".rstrip("/")


def parse_bucket_path(path: str) -> BucketPath:
    """Parses ``gs://bucket/path``.

    Args:
        path: Path to parse.

    Returns:
        Bucket and folder.

    Raises:
        LaunchError: If Cloud Storage would refuse one of them.

    Example:
        >>> parse_bucket_path("gs://vast-data/stores/cube/")
        BucketPath(bucket='vast-data', folder='stores/cube')
    """
    if not path.startswith("gs://"):
        raise LaunchError(
            f"{path}: expected gs://bucket/path; use a folder on Cloud Storage, which "
            "all machines of the job reach"
        )
    bucket, _, folder = path.removeprefix("gs://").partition("/")
    _check_bucket(bucket, path)
    folder = folder.strip("/")
    if len(folder.encode()) > 1024:
        raise LaunchError(
            f"{path[:60]}...: Cloud Storage takes names of up to 1,024 bytes, got "
            f"{len(folder.encode()):,}; choose a shorter one"
        )
    for part in folder.split("/") if folder else ():
        # The service allows these characters, but gcloud and our own globs take them
        # for wildcards.
        odd = sorted(set(part) & set("*?[]#\r\n"))
        if part in ("", ".", "..") or odd or not part.isprintable():
            raise LaunchError(
                f"{path!r}: a folder called {part!r} cannot be used on Cloud Storage; "
                "leave out empty parts, dots alone, and * ? [ ] #"
            )
    return BucketPath(bucket, folder)


def parse_run(out: str) -> BucketPath:
    """Parses the folder of a run.

    Args:
        out: Folder, as ``gs://bucket/RUN``.

    Returns:
        Bucket and folder.

    Raises:
        LaunchError: If the folder cannot be used, or is a whole bucket.
    """
    path = parse_bucket_path(out)
    # The last component becomes the name of the run, and of its job by default.
    if not path.folder:
        raise LaunchError(
            f"expected the run's folder as gs://bucket/RUN, got {out}; add a folder"
        )
    return path


def select_buckets(*paths: str) -> tuple[str, ...]:
    """Selects the paths that are on an object store, and checks them.

    Args:
        *paths: Paths, local or remote.

    Returns:
        The remote paths.

    Raises:
        LaunchError: If Cloud Storage would refuse one of them.

    Example:
        >>> select_buckets("runs/one", "gs://vast-data/runs/one")
        ('gs://vast-data/runs/one',)
    """
    remote = tuple(path for path in paths if "://" in path)
    for path in remote:
        parse_bucket_path(path)
    return remote


def _check_bucket(bucket: str, path: str) -> None:
    """Checks the name of a bucket by Cloud Storage's rules."""
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
        raise LaunchError(
            f"{path}: the bucket's name {bucket!r} {reason}; correct the name"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return False
    return True


def check_job_name(name: str, *, longest: int, option: str = "--name") -> str:
    """Checks the name of a job.

    Args:
        name: Name of the job.
        longest: Largest number of characters: 63 less those that the service appends.
        option: Option that the name was given with.

    Returns:
        The name.

    Raises:
        LaunchError: If the service would refuse the name.
    """
    if not _LABEL.fullmatch(name) or len(name) > longest:
        raise LaunchError(
            f"{option}: expected small letters, digits and dashes, a letter first and "
            f"at most {longest} characters, got {name!r}; choose such a name"
        )
    return name


def make_job_name(name: str, *, longest: int) -> str:
    """Makes the name of a job from a name that services might refuse.

    Args:
        name: Name of what the job is for, such as a cell of a sweep.
        longest: Largest number of characters.

    Returns:
        The same name if it is allowed. Otherwise its small letters, digits and dashes,
        shortened, and a hash of the whole name, by which names that differ only in
        other characters, or at their ends, stay apart.

    Example:
        >>> make_job_name("cube-1-vast-seed-0", longest=45)
        'cube-1-vast-seed-0'
        >>> make_job_name("antmaze-large-navigate-1-value-flows-seeds-0-7", longest=45)
        'antmaze-large-navigate-1-value-flows-2d5cb378'
    """
    if _LABEL.fullmatch(name) and len(name) <= longest:
        return name
    suffix = f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    start = re.sub("[^a-z0-9-]", "-", name.lower()).lstrip("-0123456789")
    start = start[: longest - len(suffix)].rstrip("-") or "job"
    return f"{start}{suffix}"


def check_project(project: str | None) -> str:
    """Checks the id of a Google Cloud project; it is required."""
    if project is None:
        raise LaunchError(
            "--project: expected the id of a Google Cloud project, got none; `gcloud "
            "projects list` shows them"
        )
    if not _PROJECT.fullmatch(project):
        raise LaunchError(
            f"--project: expected an id such as my-project-1, got {project!r}; "
            "`gcloud projects list` shows them"
        )
    return project


def check_region(region: str | None) -> str:
    """Checks the name of a region; it is required."""
    if region is None:
        raise LaunchError(
            "--region: expected a region such as europe-west4, got none; give the "
            "region of the bucket"
        )
    # The usual mistake, since most of Google's commands take a zone.
    zone = _ZONE.fullmatch(region)
    if zone is not None:
        raise LaunchError(
            f"--region: {region} is a zone; give its region, {zone['region']}"
        )
    if not _REGION.fullmatch(region):
        raise LaunchError(
            f"--region: expected a region such as europe-west4, got {region!r}; "
            "`gcloud compute regions list` shows them"
        )
    return region


def check_subnetwork(name: str | None) -> str | None:
    """Checks the name of a subnetwork; it is optional."""
    # The name alone: its region is that of the job.
    if name is not None and not (_LABEL.fullmatch(name) and len(name) <= 63):
        raise LaunchError(
            "--subnetwork: expected its name alone, of small letters, digits and "
            f"dashes, a letter first, got {name!r}; leave out network and region"
        )
    return name


def check_service_account(account: str | None) -> str:
    """Checks the address of a service account; it is required."""
    # Required although Dataflow has a default: see the message.
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
            f"{account!r}; `gcloud iam service-accounts list` shows them"
        )
    return account


def check_address(address: str | None, option: str) -> str:
    """Checks a HOST:PORT, which is required; ``option`` is where it was given."""
    if address is None or not _ADDRESS.fullmatch(address):
        raise LaunchError(
            f"{option}: expected HOST:PORT, got {address!r}; give the address of a "
            "service that runs"
        )
    return address


def check_workers(address: str) -> str:
    """Checks the address at which each machine of an engine finds its own workers.

    Args:
        address: ``localhost:PORT``, or the path of a program.

    Returns:
        The address.

    Raises:
        LaunchError: If the address is neither, or leads to another machine.
    """
    if address.startswith("/"):
        # The path is put into JSON, for Beam's option --environment_config.
        if set(address) & set('"\\') or not address.isprintable():
            raise LaunchError(
                "--workers-at: expected a path without quotes, backslashes and control "
                f"characters, got {address!r}; move the program"
            )
        return address
    host, _, _ = check_address(address, "--workers-at").partition(":")
    if host not in ("localhost", "127.0.0.1"):
        raise LaunchError(
            f"--workers-at: expected localhost:PORT or the path of vast-rl-worker, got "
            f"{address!r}; one pool cannot serve several task managers, because they "
            "give their workers the same names: start one beside each"
        )
    return address


def check_image(image: str | None, *, version: str) -> str:
    """Checks that the tag of an image names the version of this package.

    Workers of another version would fail after they have cost money, or write a store
    that this version cannot read.

    Args:
        image: Image, as ``REGISTRY/NAME:TAG``.
        version: Version of this package.

    Returns:
        The image.

    Raises:
        LaunchError: If the tag does not name the version.
    """
    if image is None:
        raise LaunchError(
            f"--image: expected REGISTRY/NAME:{version}, got none; build and push one "
            "by a recipe of infra/containers/"
        )
    name, _, digest = image.partition("@")
    _, _, tag = name.rpartition("/")[2].partition(":")
    if not tag:
        raise LaunchError(
            f"--image: {image} has no tag"
            + (" to tell its version by" if digest else "")
            + f"; expected one of {version}, the version here"
        )
    # A suffix tells builds of one version apart, or kinds of chips.
    if tag != version and not tag.startswith(f"{version}-"):
        raise LaunchError(
            f"--image: {image} does not hold the version here; expected a tag of "
            f"{version} or {version}-SUFFIX, got {tag!r}: build and push it from this "
            "checkout"
        )
    return image
