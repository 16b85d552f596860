"""Ending a job on a Flink cluster, which Beam's job server leaves running.

Beam's job server answers that a job is cancelled and stops to wait for it, while Flink
goes on with it. So Flink is asked itself, by the interface that its own web page uses.
"""

import json
import urllib.parse
import urllib.request
from typing import Any

# States of a job that has ended already, or is about to.
_OVER = {"FINISHED", "FAILED", "CANCELED", "CANCELLING", "FAILING"}
_ANSWER_S = 10.0


def end_job(master: str, name: str) -> int:
    """Cancels a job by its name.

    Args:
        master: ``HOST:PORT`` of the job manager's REST interface, or its URL.
        name: Of the job; all of that name are ended, so it has to be its own.

    Returns:
        Jobs that were ended.

    Raises:
        OSError: If the job manager does not answer, or refuses.
    """
    base = master if "://" in master else f"http://{master}"
    base = base.rstrip("/")
    jobs = json.loads(_ask("GET", f"{base}/jobs/overview"))["jobs"]
    running = [
        job["jid"] for job in jobs if job["name"] == name and job["state"] not in _OVER
    ]
    for job in running:
        _ask("PATCH", f"{base}/jobs/{urllib.parse.quote(job)}?mode=cancel")
    return len(running)


def _ask(method: str, url: str) -> Any:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
        return answer.read()
