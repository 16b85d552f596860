"""Cancels jobs on a Flink cluster through Flink's REST interface.

When Beam's job server is told to cancel a job, it reports the job as cancelled and no
longer waits for it, but Flink goes on running the job. Flink has to be asked directly.
"""

import json
import urllib.parse
import urllib.request
from typing import Any

# States of a job that has ended, or is about to end.
_OVER = {"FINISHED", "FAILED", "CANCELED", "CANCELLING", "FAILING"}
_ANSWER_S = 10.0


def end_job(master: str, name: str) -> int:
    """Cancels a job by its name.

    Args:
        master: ``HOST:PORT`` of the job manager's REST interface, or its URL.
        name: Name of the job. It must be unique, because all running jobs of this name
            are cancelled.

    Returns:
        Number of jobs that were cancelled.

    Raises:
        OSError: If the job manager does not answer, or refuses.
    """
    base = master if "://" in master else f"http://{master}"
    base = base.rstrip("/")
    jobs = json.loads(_request("GET", f"{base}/jobs/overview"))["jobs"]
    running = [
        job["jid"] for job in jobs if job["name"] == name and job["state"] not in _OVER
    ]
    for job in running:
        _request("PATCH", f"{base}/jobs/{urllib.parse.quote(job)}?mode=cancel")
    return len(running)


def _request(method: str, url: str) -> Any:
    """Sends a request and returns the body of the answer."""
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        return answer.read()
