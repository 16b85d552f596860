"""Jobs on an engine: lost, failed, cancelled on the engine, or ended by a signal."""

import contextlib
import json
import signal
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    endpoints_pb2,
)

from pipeline.beam import boot, flink, remote, runners
from pipeline.store.errors import DataFormatError

LOST = RuntimeError("Pipeline job-1 failed in state FAILED: TaskManager is gone")
WRONG = RuntimeError("pipeline.store.errors.DataFormatError: a.npz is wrong")
CANCELLED = RuntimeError("Pipeline job-1 failed in state CANCELLED: unknown error")


class PortableRunner:
    """Has the name of a Beam runner whose ``run`` returns when the job begins."""


class Job:
    """A pipeline that is also its result, and ends in a given way."""

    def __init__(self, ending=None, *, handing_in=lambda: None):
        self.runner = PortableRunner()
        self.ending, self.handing_in = ending, handing_in
        self.cancelled, self.over = False, threading.Event()

    def run(self):
        self.handing_in()
        return self

    def wait_until_finish(self):
        if self.ending == "never":
            assert self.over.wait(30)
        elif self.ending is not None:
            raise self.ending

    def cancel(self):
        self.cancelled = True
        self.over.set()


def run(jobs, *, rows=(0,) * 20, end=lambda: None):
    """Runs jobs until one succeeds; returns it, the lines said, and the other jobs."""
    jobs, rows, said = list(jobs), iter(rows), []
    watch = remote.Watch(said.append, lambda: next(rows))
    is_explained = runners._is_explained
    result = remote.run(lambda: jobs.pop(0), watch, is_explained=is_explained, end=end)
    return result, said, jobs


def test_a_job_that_was_lost_is_handed_in_again():
    last = Job()
    result, said, left = run([Job(LOST), last, Job()])
    assert result is last
    assert len(left) == 1
    (line,) = said
    assert "TaskManager is gone" in line
    assert "handed in again, what was finished stays" in line


def test_losses_count_as_long_as_nothing_is_finished():
    jobs = [Job(LOST) for _ in range(remote.ATTEMPTS)]
    with pytest.raises(OSError, match=r"gave the job up 4 times in a row .*is gone"):
        run(jobs)
    # Every job but the first finishes a row.
    jobs = [Job(LOST) for _ in range(2 * remote.ATTEMPTS)]
    last = Job()
    assert run([*jobs, last], rows=range(20))[0] is last


@pytest.mark.parametrize(
    ("ending", "raised"),
    [
        (WRONG, (RuntimeError, "a.npz is wrong")),
        (CANCELLED, (OSError, r"was cancelled on the engine \(.*; what was finished")),
        (OSError("disk: full"), (OSError, "disk: full")),
    ],
)
def test_what_is_known_not_to_help_is_not_repeated(ending, raised):
    jobs = [Job(ending), Job()]
    kind, message = raised
    with pytest.raises(kind, match=message):
        run(jobs)
    seen = []
    with pytest.raises(kind):
        remote.run(
            lambda: seen.append(1) or Job(ending),
            remote.SILENT,
            is_explained=runners._is_explained,
        )
    assert len(seen) == 1


class HeardError(Exception):
    """Raised by the handler that was installed before the job."""


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def number(request):
    def hear(number, frame):
        raise HeardError(number)

    before = signal.signal(request.param, hear)
    yield request.param
    assert signal.getsignal(request.param) is hear
    signal.signal(request.param, before)


def test_a_signal_ends_the_job_and_then_does_what_it_did_before(number):
    job, ended = Job("never"), []
    timer = threading.Timer(0.1, signal.pthread_kill, _here(number))
    timer.start()
    with pytest.raises(HeardError):
        run([job], end=lambda: ended.append(number))
    timer.join()
    assert job.cancelled
    assert ended == [number]


def test_a_signal_amid_handing_in_waits_until_there_is_a_job_to_end(number):
    job = Job("never", handing_in=lambda: signal.raise_signal(number))
    with pytest.raises(HeardError):
        run([job])
    assert job.cancelled


def test_a_signal_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        job = Job(handing_in=lambda: signal.raise_signal(signal.SIGHUP))
        assert run([job])[0] is job
    finally:
        signal.signal(signal.SIGHUP, before)


def _here(number):
    return threading.main_thread().ident, number


def test_an_engine_that_does_not_answer_is_one_line(make_npz, make_plan):
    from pipeline.beam import pipelines

    plan = make_plan(make_npz((5, 7)))
    options = runners.make_options(
        1,
        [
            *("--runner=PortableRunner", "--job_endpoint=localhost:9"),
            *("--job_server_timeout=1", "--environment_type=LOOPBACK"),
        ],
    )
    with pytest.raises(OSError, match=r"did not take the job.*--job_endpoint"):
        runners.run(lambda root: pipelines.define_sharding(root, plan, runs=1), options)


@contextlib.contextmanager
def rest(jobs, asked):
    """Serves a job manager's REST interface; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(("GET", self.path))
            self.answer(200, json.dumps({"jobs": jobs}).encode())

        def do_PATCH(self):
            asked.append(("PATCH", self.path))
            self.answer(202, b"{}")

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_flink_is_asked_to_cancel_the_job_of_that_name_alone():
    states = [("mine", "RUNNING"), ("mine", "FINISHED"), ("other", "RUNNING")]
    jobs = [
        {"jid": f"{i:032x}", "name": name, "state": state}
        for i, (name, state) in enumerate(states)
    ]
    for scheme in ("", "http://"):
        asked = []
        with rest(jobs, asked) as address:
            assert flink.end_job(f"{scheme}{address}", "mine") == 1
        assert asked == [
            ("GET", "/jobs/overview"),
            ("PATCH", f"/jobs/{0:032x}?mode=cancel"),
        ]


def test_jobs_on_flink_have_names_of_their_own(monkeypatch):
    ended = []
    monkeypatch.setattr(flink, "end_job", lambda *where: ended.append(where))

    def hand_in(make, watch, *, is_explained, end):
        end()

    monkeypatch.setattr(remote, "run", hand_in)
    for _ in range(2):
        options = runners.make_options(
            1, ["--runner=PortableRunner", "--flink_master=jm:8081", "--job_name=cube"]
        )
        runners._run_on_engine(lambda name: None, options, remote.SILENT)
        assert ended[-1] == ("jm:8081", options.get_all_options()["job_name"])
    assert len(set(ended)) == 2
    assert all(name.startswith("cube-") for _, name in ended)


class Provision(beam_provision_api_pb2_grpc.ProvisionServiceServicer):
    def GetProvisionInfo(self, request, context):  # noqa: N802
        (worker,) = (v for k, v in context.invocation_metadata() if k == "worker_id")
        info = beam_provision_api_pb2.ProvisionInfo(
            control_endpoint=endpoints_pb2.ApiServiceDescriptor(url=f"control:{worker}")
        )
        info.pipeline_options["beam:option:job_name:v1"] = "cube"
        return beam_provision_api_pb2.GetProvisionInfoResponse(info=info)


def test_a_worker_that_an_engine_starts_learns_where_its_work_comes_from(monkeypatch):
    server = grpc.server(futures.ThreadPoolExecutor(1))
    beam_provision_api_pb2_grpc.add_ProvisionServiceServicer_to_server(
        Provision(), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ran = []
    monkeypatch.setattr(boot.sdk_worker_main, "main", ran.append)
    variables = {}
    arguments = ["--id=7-1", f"--provision_endpoint=127.0.0.1:{port}", "--more=x"]
    try:
        assert boot.main(arguments, variables) == 0
    finally:
        server.stop(None).wait()
    assert len(ran) == 1
    assert variables["WORKER_ID"] == "7-1"
    assert variables["CONTROL_API_SERVICE_DESCRIPTOR"] == 'url: "control:7-1"'
    assert json.loads(variables["PIPELINE_OPTIONS"])["beam:option:job_name:v1"] == (
        "cube"
    )
    # The engine named no endpoint for logs.
    assert "LOGGING_API_SERVICE_DESCRIPTOR" not in variables


def test_an_error_of_data_keeps_its_class(make_npz, make_plan, monkeypatch):
    options = runners.make_options(1, ["--runner=PortableRunner", "--job_endpoint=x:1"])

    def fail(*_, **__):
        raise WRONG

    monkeypatch.setattr(remote, "run", fail)
    with pytest.raises(DataFormatError, match=r"^a\.npz is wrong$"):
        runners.run(lambda root: None, options)
