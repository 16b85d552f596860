"""Parts whose episodes are all bad, as in folders of files with one episode each."""

import json

import numpy as np
import pytest

from pipeline.assembly import append
from pipeline.assembly.append import commit_append, plan_append
from pipeline.assembly.commit import commit_store, find_committed
from pipeline.assembly.merge import merge, plan_merge
from pipeline.assembly.plan import PlanOptions, describe_inputs, plan_inputs
from pipeline.beam import pipelines, runners
from pipeline.cli import main
from pipeline.inspection import store_page
from pipeline.inspection.verify import verify_store
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store import manifest_json
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.parts import write_alone
from tests.stores import version_1
from trainer.data.table import load_table

SKIP = PlanOptions(on_bad_episode="skip", max_bad_share=0.3)


@pytest.fixture
def make_files(make_npz, make_rows):
    """Makes files of one episode each; those named have an observation of NaN."""

    def make(count, *, bad=(), name="file", seed=0):
        paths = []
        for number in range(count):
            rows = make_rows((5 + number,), seed + number)
            if number in bad:
                rows["observations"][2, 0] = np.nan
            path = make_npz((5 + number,), name=f"{name}-{number}.npz", **rows)
            paths.append(path)
        return paths

    return make


@pytest.fixture
def plan_files(tmp_path, tasks):
    def plan(paths, *, out="store", options=SKIP, val=()):
        inputs = [("train", OgbenchNpz(path)) for path in paths]
        inputs += [("val", OgbenchNpz(path)) for path in val]
        return plan_inputs(
            str(tmp_path / out),
            describe_inputs(inputs),
            dataset="cube-single-play",
            environment_id="cube-single-v0",
            tasks=tasks,
            discounts=(0.9,),
            options=options,
            versions={},
        )

    return plan


def write(plan):
    return commit_store(plan, write_alone(*plan.parts))


def more(plan, paths):
    sources = [("train", OgbenchNpz(path)) for path in paths]
    return plan_append(plan.root, describe_inputs(sources), SKIP)


def test_only_the_bad_episode_is_left_out(make_files, plan_files, make_rows, tmp_path):
    plan = plan_files(make_files(5, bad=[1]))
    made = write(plan)
    store = Store(plan.root)
    assert store.manifest == made
    assert [part.index for part in made.parts] == [0, 2, 3, 4]
    (empty,) = made.empty_parts
    assert (empty.index, empty.rows, empty.dropped) == (1, 0, {"nonfinite": (0,)})
    assert empty.origin.name == "file-1.npz"
    assert len(list((tmp_path / "store" / "parts").iterdir())) == 4
    expected = [make_rows((5 + n,), n)["observations"] for n in (0, 2, 3, 4)]
    rows = np.concatenate(expected)
    np.testing.assert_array_equal(store.read("observations"), rows)
    assert made.statistics["observations"].count == len(rows) == 29
    assert verify_store(store, deep=True) == []
    table = load_table(store, task=1, discount=0.9)
    assert table.episode_lengths.tolist() == [5, 7, 8, 9]
    # A repeated command finds the store finished, and a repeated commit commits it.
    assert find_committed(plan) == made
    assert write(plan) == made


def test_without_bad_episodes_the_manifest_has_no_such_entry(make_files, plan_files):
    made = write(plan_files(make_files(2)))
    assert "empty_parts" not in json.loads(manifest_json.to_json(made))


def test_empty_parts_count_for_the_share(make_files, plan_files):
    options = PlanOptions(on_bad_episode="skip", max_bad_share=0.1)
    plan = plan_files(make_files(5, bad=[1]), options=options)
    with pytest.raises(DataFormatError, match=r"1 of 5 episodes are bad \(nonfinite\)"):
        write(plan)


@pytest.mark.parametrize("val", [False, True])
def test_a_store_of_which_nothing_is_left_is_an_error(val, make_files, plan_files):
    options = PlanOptions(on_bad_episode="skip", max_bad_share=1.0)
    good = make_files(1, name="val", seed=9) if val else ()
    plan = plan_files(make_files(2, bad=[0, 1]), options=options, val=good)
    with pytest.raises(
        DataFormatError, match=r"good episode.*\(nonfinite\).*; look into"
    ):
        write(plan)
    assert find_committed(plan) is None


def test_refusing_names_the_episode_as_before(make_files, plan_files):
    plan = plan_files(make_files(2, bad=[0]), options=PlanOptions())
    with pytest.raises(DataFormatError, match=r"file-0\.npz, episode 0, row 2: obs"):
        write(plan)


def test_beam_writes_the_same_store(make_files, plan_files, read_tree):
    paths = make_files(5, bad=[1])
    pure, plan = plan_files(paths, out="pure"), plan_files(paths)
    write(pure)
    runners.run(
        lambda root: pipelines.define_sharding(root, plan, runs=3),
        runners.make_options(1),
    )
    assert read_tree(plan.root) == read_tree(pure.root)


def test_what_is_appended_is_numbered_after_empty_parts(make_files, plan_files):
    plan = plan_files(make_files(5, bad=[4]))
    write(plan)
    paths = make_files(4, bad=[3], name="more", seed=20)
    asked = more(plan, paths)
    assert asked is not None
    with append.claim(asked) as claimed:
        made = commit_append(asked, write_alone(*asked.added.parts), claimed)
    assert [part.index for part in made.parts] == [0, 1, 2, 3, 5, 6, 7]
    assert [part.index for part in made.empty_parts] == [4, 8]
    assert verify_store(Store(plan.root), deep=True) == []
    # A repeated append has nothing to do, although nothing of one file is stored; and
    # the command that made the store finds it finished.
    assert more(plan, paths) is None
    assert find_committed(plan) == made


def test_an_append_of_bad_episodes_alone_is_an_error(make_files, plan_files):
    plan = plan_files(make_files(2))
    made = write(plan)
    paths = make_files(1, bad=[0], name="more")
    sources = describe_inputs([("train", OgbenchNpz(path)) for path in paths])
    asked = plan_append(plan.root, sources, PlanOptions(12, "skip", 1.0))
    with pytest.raises(DataFormatError, match="expected a good episode, got bad ones"):
        commit_append(asked, write_alone(*asked.added.parts))
    assert Store(plan.root).manifest == made


def test_a_claim_on_empty_parts_that_are_committed_is_left_over(make_files, plan_files):
    """An append that was killed after its commit left its claim."""
    plan = plan_files(make_files(2))
    write(plan)
    asked = more(plan, make_files(4, bad=[0], name="more", seed=20))
    with append.claim(asked):
        commit_append(asked, write_alone(*asked.added.parts))
        others = more(plan, make_files(1, name="other", seed=30))
        with append.claim(others):
            pass


def test_a_store_of_version_1_gets_no_entry_that_its_readers_refuse(
    make_files, plan_files
):
    plan = plan_files(make_files(2))
    with version_1():
        write(plan)
    asked = more(plan, make_files(4, bad=[0], name="more", seed=20))
    made = commit_append(asked, write_alone(*asked.added.parts))
    assert [part.index for part in made.parts] == [0, 1, 3, 4, 5]
    assert (made.format_version, made.empty_parts) == (1, ())
    assert verify_store(Store(plan.root), deep=True) == []


def test_joined_stores_keep_record_of_empty_parts(make_files, plan_files, tmp_path):
    plans = [
        plan_files(make_files(4, bad=[n], name=str(n), seed=10 * n), out=f"store-{n}")
        for n in (0, 1)
    ]
    for plan in plans:
        write(plan)
    joined = plan_merge([plan.root for plan in plans], str(tmp_path / "joined"))
    made = merge(joined)
    assert [part.index for part in made.parts] == [0, 1, 2, 3, 4, 5]
    assert [part.index for part in made.empty_parts] == [6, 7]
    assert [part.origin.name for part in made.empty_parts] == ["0-0.npz", "1-1.npz"]
    assert verify_store(Store(joined.root), deep=True) == []
    # Both inputs count as held.
    assert more(joined, [str(tmp_path / "0-0.npz"), str(tmp_path / "1-1.npz")]) is None


def test_inspecting_shows_what_was_left_out(make_files, plan_files, capsys):
    plan = plan_files(make_files(4, bad=[2]))
    write(plan)
    assert main(["inspect", plan.root, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    (empty,) = facts["empty_parts"]
    assert (empty["name"], empty["dropped"]) == ("file-2.npz", {"nonfinite": [0]})
    assert main(["inspect", plan.root]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if "1 nonfinite" in x]
    assert line.split()[:4] == ["none", "train", "0", "0"]
    (table,) = [x for x in store_page._make_tables(facts) if x.title == "Parts"]
    shown = ("none", "train", "0", "0", "file-2.npz, episode 0 on", "1 nonfinite")
    assert [row for row in table.rows if row[-1]] == [shown]
    assert len(table.rows) == 4


def test_an_empty_part_with_rows_is_refused(make_files, plan_files):
    plan = plan_files(make_files(4, bad=[2]))
    made = json.loads(manifest_json.to_json(write(plan)))
    for name in ("rows", "episodes"):
        changed = json.loads(json.dumps(made))
        changed["empty_parts"][0][name] = 1
        with pytest.raises(DataFormatError, match=r"empty_parts\.2: expected no rows"):
            manifest_json.dataset_from_json(json.dumps(changed), where="dataset.json")
