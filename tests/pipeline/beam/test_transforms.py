from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing import test_pipeline as beam_testing
from apache_beam.testing.util import assert_that, equal_to

from pipeline.assembly.commit import commit_store
from pipeline.assembly.plan import installed_versions
from pipeline.beam import pipelines, runners, transforms
from pipeline.beam.transforms import WriteParts, locate_errors
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store.errors import DataFormatError, UsageError, WorkerError
from pipeline.store.reader import Store
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


def run(plan, workers=1):
    options = runners.make_options(workers)
    return runners.run(
        lambda root: pipelines.define_sharding(root, plan, runs=workers), options
    )


def test_beam_writes_what_the_pure_functions_write(make_npz, make_plan, read_tree):
    path = make_npz(LENGTHS)
    plan, pure = make_plan(path, out="beam"), make_plan(path, out="pure")
    assert len(plan.parts) > 1
    counters = run(plan)
    commit_store(pure, write_alone(*pure.parts))
    assert read_tree(plan.root) == read_tree(pure.root)
    assert counters == {"parts_finished": 2, "rows_finished": sum(LENGTHS)}


def test_parts_come_out_as_manifests(make_npz, make_plan):
    plan = make_plan(make_npz(LENGTHS))
    options = runners.make_options(1)
    with beam_testing.TestPipeline(options=options) as root:
        parts = root | beam.Create(plan.runs(2)) | WriteParts()
        assert_that(
            parts | beam.Map(lambda part: part.rows),
            equal_to([part.episodes.rows for part in plan.parts]),
        )


def test_a_worker_of_another_version_is_refused(make_npz, make_plan, monkeypatch):
    plan = make_plan(make_npz(LENGTHS))
    root = beam.Pipeline(options=runners.make_options(1))
    pipelines.define_sharding(root, plan, runs=1)
    here = installed_versions()
    # The job is made by now, so that this stands for the versions of its workers.
    monkeypatch.setattr(
        transforms, "_find_versions", lambda: {**here, "vast-rl": "0.0.1"}
    )
    with pytest.raises(Exception, match=r"expected vast-rl .*, got 0\.0\.1") as error:
        root.run().wait_until_finish()
    assert "vast-rl" in (runners.find_data_error(error.value) or "")
    assert not Path(plan.root, "dataset.json").exists()


def test_dropped_episodes_are_counted_by_reason(make_npz, make_plan, make_rows):
    rows = make_rows(LENGTHS)
    rows["observations"][0, 0] = float("nan")
    plan = make_plan(
        make_npz(LENGTHS, **rows), on_bad_episode="skip", max_bad_share=0.5
    )
    counters = run(plan)
    assert counters["episodes_dropped"] == 1
    assert counters["episodes_dropped_nonfinite"] == 1
    assert Store(plan.root).rows() == sum(LENGTHS) - 5


def test_an_error_in_a_worker_comes_back_as_it_was_raised(
    make_npz, make_plan, make_rows, capfd
):
    rows = make_rows(LENGTHS)
    rows["observations"][0, 0] = float("nan")
    plan = make_plan(make_npz(LENGTHS, **rows))
    with pytest.raises(DataFormatError) as caught:
        run(plan)
    message = str(caught.value)
    assert message.startswith("cube-single-play.npz, episode 0, row 0: observations[0]")
    assert message.endswith("--on-bad-episode skip")
    assert capfd.readouterr() == ("", "")


def test_errors_are_found_in_the_text_of_a_traceback():
    text = (
        "Traceback (most recent call last):\n  File ...\n"
        "pipeline.store.errors.DataFormatError: inner\n\nDuring handling ...\n"
        "pipeline.store.errors.BadEpisodeError: x.npz [3]: bad "
        "[while running 'A/B-1']\n"
    )
    assert runners.find_data_error(RuntimeError(text)) == "x.npz [3]: bad"
    assert runners.find_data_error(RuntimeError("ValueError: a fault of ours")) is None
    text = "pipeline.store.errors.UsageError: no such task"
    assert runners.find_data_error(RuntimeError(text)) == "no such task"
    in_process = UsageError("no such task [while running 'A/B-1']")
    assert runners.find_data_error(in_process) == "no such task"
    assert runners.find_data_error(ValueError("a fault of ours")) is None


@pytest.mark.parametrize(
    ("workers", "arguments", "expected"),
    [
        (1, [], {"runner": "FnApiRunner", "direct_num_workers": 1}),
        (3, [], {"runner": "FnApiRunner", "direct_num_workers": 3}),
        (3, ["--job_name=x"], {"job_name": "x", "direct_num_workers": 3}),
        (
            3,
            ["--runner=PortableRunner", "--job_endpoint=localhost:1"],
            {"runner": "PortableRunner", "job_endpoint": "localhost:1"},
        ),
    ],
)
def test_options_choose_the_local_runner_unless_told(workers, arguments, expected):
    options = runners.make_options(workers, arguments).get_all_options()
    assert expected.items() <= options.items()
    if "--runner=PortableRunner" in arguments:
        assert options["direct_num_workers"] == 1


def test_there_is_at_least_one_worker():
    with pytest.raises(ValueError, match="at least 1 worker"):
        runners.make_options(0)


def test_an_error_of_any_class_names_what_was_worked_on(
    make_npz, make_plan, monkeypatch
):
    plan = make_plan(make_npz(LENGTHS))
    assert len(plan.parts) == 2
    read = OgbenchNpz.read

    def fail(self, ranges):
        yield next(read(self, ranges))
        raise KeyError("a bug\nof two lines")

    monkeypatch.setattr(OgbenchNpz, "read", fail)
    with pytest.raises(WorkerError) as caught:
        run(plan)
    said = str(caught.value)
    first = len(plan.parts[0].episodes.lengths)
    assert f"cube-single-play.npz, part 1 (episodes {first} to 5): KeyError: " in said
    assert "\n" not in said
    kept = Path(said.rpartition(" is in ")[2])
    assert "in fail" in kept.read_text()  # The file holds the traceback.
    kept.unlink()


def test_what_says_itself_what_is_wrong_is_left_as_it_is():
    for error in (OSError("full"), DataFormatError("bad"), UsageError("wrong")):

        def fail(error=error):
            raise error

        with pytest.raises(type(error), match=r"^(full|bad|wrong)$"):
            locate_errors("somewhere", fail)
