import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from ogbench.relabel_utils import relabel_dataset
from ogbench.utils import load_dataset

from pipeline.assembly import parts
from pipeline.assembly.commit import commit_store
from pipeline.assembly.parts import write_parts
from pipeline.assembly.plan import describe_inputs, plan_inputs
from pipeline.domains.datasets import parse_dataset
from pipeline.domains.environments import make_environment
from pipeline.domains.goals import read_tasks
from pipeline.sources.base import Block, Description
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store import arrays, schema
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import Task
from pipeline.store.reader import Store
from pipeline.store.returns import suffix_sums
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


def write(plan):
    return commit_store(plan, write_alone(*plan.parts))


def poison(rows, **values):
    """The rows with one value of row 12, in the third episode, replaced."""
    poisoned = {name: array.copy() for name, array in rows.items()}
    for name, value in values.items():
        poisoned[name][12, 1] = value
    return poisoned


def test_labels_are_those_of_the_pure_functions(make_npz, make_plan, make_rows):
    plan = make_plan(make_npz(LENGTHS))
    assert len(plan.parts) == 2
    write(plan)
    store = Store(plan.root)
    masks, rewards = store.read("masks"), store.read("rewards")
    assert 0 < (masks == 0).sum() < masks.size
    np.testing.assert_array_equal(rewards, (masks == 0) - np.float32(1))
    for discount in (0.9, 0.99):
        expected = suffix_sums(rewards, masks, np.array(LENGTHS), discount=discount)
        np.testing.assert_array_equal(store.read(f"returns/{discount}"), expected)


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_rewards_and_masks_are_exactly_those_of_ogbench(make_npz, make_plan, make_rows):
    domain = parse_dataset("cube-single-play")
    tasks = read_tasks(domain)
    # The cube is put on and around the border of every goal, 0.04 m away.
    rows, random = make_rows((400,)), np.random.default_rng(0)
    goals = np.array([task.goal["cube_xyzs"][0] for task in tasks])
    away = random.normal(size=(400, 3))
    away *= random.uniform(0.0399, 0.0401, (400, 1)) / np.linalg.norm(
        away, axis=1, keepdims=True
    )
    rows["qpos"][:, 14:17] = goals[random.integers(0, 5, 400)] + away
    plan = make_plan(make_npz((400,), qpos=rows["qpos"]), tasks=tasks)
    write(plan)
    store = Store(plan.root)
    for column, task in enumerate(tasks):
        environment = make_environment(task.environment_id)
        expected = {"qpos": rows["qpos"]}
        relabel_dataset(task.environment_id, environment, expected)
        assert 0 < expected["masks"].sum() < 400
        for name in ("rewards", "masks"):
            found = store.read(name, column=column)
            np.testing.assert_array_equal(found, expected[name])


def test_statistics_are_of_the_training_split(make_npz, make_plan, make_rows):
    val = make_npz((3, 4), name="cube-single-play-val.npz", seed=1)
    made = write(make_plan(make_npz(LENGTHS), val=val))
    assert [part.split for part in made.parts] == ["train", "train", "val"]
    observations = make_rows(LENGTHS)["observations"].astype(np.float64)
    found = made.statistics["observations"]
    assert found.count == len(observations)
    np.testing.assert_allclose(found.mean, observations.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, observations.std(0), rtol=1e-12)


def test_the_same_input_gives_the_same_bytes(make_npz, make_plan, read_tree):
    path = make_npz(LENGTHS)
    write(make_plan(path, out="a"))
    write(make_plan(make_npz(LENGTHS, compressed=False), out="b"))
    assert read_tree(make_plan(path, out="a").root) == read_tree(
        make_plan(path, out="b").root
    )


def test_a_finished_part_is_not_written_again(make_npz, make_plan, monkeypatch):
    plan = make_plan(make_npz(LENGTHS))
    first = write_alone(*plan.parts)

    def refuse(*arguments, **options):
        raise AssertionError("written again")

    monkeypatch.setattr(parts, "PartWriter", refuse)
    assert write_alone(*plan.parts) == first
    for other in (
        make_plan(make_npz(LENGTHS), discounts=(0.5,)),
        make_plan(make_npz(LENGTHS), tasks=plan.parts[0].tasks[:2]),
        make_plan(make_npz(LENGTHS, seed=1, name="cube-single-play.npz")),
    ):
        with pytest.raises(AssertionError, match="written again"):
            write_alone(other.parts[0])


def test_a_bundle_may_run_twice_at_once(make_npz, make_plan, read_tree):
    """Beam runs bundles again, and some runners do so while the first still runs."""
    path = make_npz(LENGTHS)
    plan, alone = make_plan(path, out="thrice"), make_plan(path, out="alone")
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: write_all(plan), range(3)))
    assert found[0] == found[1] == found[2]
    commit_store(plan, found[0])
    write(alone)
    assert read_tree(plan.root) == read_tree(alone.root)


def write_all(plan):
    return write_alone(*plan.parts)


def test_runs_of_parts_are_written_in_one_pass(make_npz, make_plan, read_tree):
    path = make_npz(LENGTHS)
    one_by_one = make_plan(path, part_rows=6)
    assert len(one_by_one.parts) > 3
    write(one_by_one)
    for count in (1, 2, 9):
        plan = make_plan(path, part_rows=6, out=f"runs{count}")
        runs = plan.runs(count)
        assert len(runs) == min(count, len(plan.parts))
        assert sum(runs, ()) == plan.parts
        # Some are there already, in the middle of what is to be read.
        write_alone(plan.parts[1])
        write_alone(plan.parts[2])
        commit_store(plan, [part for run in runs for part in write_parts(run)])
        assert read_tree(plan.root) == read_tree(one_by_one.root)


def test_runs_do_not_span_sources(make_npz, make_plan):
    val = make_npz((3, 4, 5), name="v.npz")
    plan = make_plan(make_npz(LENGTHS), val=val, part_rows=6)
    for count in (1, 2, 3, 8):
        for run in plan.runs(count):
            assert len({part.source for part in run}) == 1
        assert sum(plan.runs(count), ()) == plan.parts


def test_each_part_of_a_large_file_beside_small_ones_is_a_run(make_npz, make_plan):
    """A cluster's workers write a part at a time, however unlike the files are."""
    val = make_npz((3,), name="v.npz")
    plan = make_plan(make_npz(LENGTHS * 3), val=val, part_rows=6)
    assert len(plan.parts) > 8
    assert plan.runs(len(plan.parts)) == [(part,) for part in plan.parts]


KILLED = """
import os, pickle, signal, sys
from pipeline.assembly import parts
from pipeline.store import arrays

plan = pickle.load(open(sys.argv[1], "rb"))
finish, calls = arrays.finish, []

def finish_or_die(*args, **options):
    calls.append(1)
    if len(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    finish(*args, **options)

arrays.finish = finish_or_die
list(parts.write_parts(plan.parts))
"""


@pytest.mark.parametrize("call", [1, 9, 15])
def test_s3_killed_in_the_middle_and_repeated(
    make_npz, make_plan, read_tree, tmp_path, call
):
    path = make_npz(LENGTHS)
    plan = make_plan(path, out="killed")
    (tmp_path / "plan.pickle").write_bytes(pickle.dumps(plan))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "plan.pickle"), str(call)],
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == -signal.SIGKILL
    assert list(Path(plan.root).rglob("c/0/0"))
    with pytest.raises(DataFormatError, match="found none"):
        Store(plan.root)
    write(plan)
    write(make_plan(path, out="clean"))
    assert read_tree(plan.root) == read_tree(make_plan(path, out="clean").root)


def test_parts_of_another_plan_leave_no_trace(make_npz, make_plan, read_tree):
    path = make_npz(LENGTHS)
    for part in make_plan(path, part_rows=4).parts:
        write_alone(part)
    write(make_plan(path))
    write(make_plan(path, out="clean"))
    assert read_tree(make_plan(path).root) == read_tree(
        make_plan(path, out="clean").root
    )


@pytest.mark.parametrize("field", ["observations", "qpos"])
def test_b1_a_bad_value_is_refused_with_its_place(
    make_npz, make_plan, make_rows, field
):
    rows = poison(make_rows(LENGTHS), **{field: np.nan})
    plan = make_plan(make_npz(LENGTHS, **rows))
    with pytest.raises(BadEpisodeError) as caught:
        write(plan)
    message = str(caught.value)
    assert f"cube-single-play.npz, episode 2, row 2: {field}[1] is nan" in message


def test_b1_skipping_leaves_out_that_episode_and_changes_no_other(
    make_npz, make_plan, make_rows
):
    rows = poison(make_rows(LENGTHS), observations=np.inf)
    options = {"on_bad_episode": "skip", "max_bad_share": 0.2}
    made = write(make_plan(make_npz(LENGTHS, name="bad.npz", **rows), **options))
    write(make_plan(make_npz(LENGTHS), out="good"))
    store, good = (
        Store(make_plan(make_npz(LENGTHS)).root),
        Store(make_plan(make_npz(LENGTHS), out="good").root),
    )
    assert [part.dropped for part in made.parts] == [{"nonfinite": (2,)}, {}]
    assert store.episodes().lengths.tolist() == [5, 5, 4, 1, 6]
    keep = np.ones(sum(LENGTHS), bool)
    keep[10:17] = False
    for field in ("observations", "rewards", "masks", "returns/0.99"):
        np.testing.assert_array_equal(store.read(field), good.read(field)[keep])
    assert made.statistics["observations"].count == sum(LENGTHS) - 7
    assert np.isfinite(made.statistics["observations"].mean).all()


def test_b1_too_many_bad_episodes_fail_the_run(make_npz, make_plan, make_rows):
    rows = poison(make_rows(LENGTHS), observations=np.inf)
    plan = make_plan(
        make_npz(LENGTHS, **rows), on_bad_episode="skip", max_bad_share=0.1
    )
    with pytest.raises(DataFormatError, match=r"1 of 6 episodes are bad \(nonfinite\)"):
        write(plan)


def test_b1_a_part_without_good_episodes_is_empty(make_npz, make_plan, make_rows):
    rows = make_rows((5,))
    rows["actions"][:] = np.nan
    plan = make_plan(make_npz((5,), **rows), on_bad_episode="skip", max_bad_share=1.0)
    (part,) = write_alone(plan.parts[0])
    assert (part.rows, part.episodes, part.checksums) == (0, 0, {})
    assert part.dropped == {"nonfinite": (0,)}
    assert not Path(plan.root).exists()


class Pictures:
    """Images and rewards of their own, as a source in memory."""

    def __init__(self, lengths):
        random = np.random.default_rng(0)
        n = sum(lengths)
        self.lengths = lengths
        self.rows = {
            "observations": random.integers(0, 256, (n, 64, 64, 3), np.uint8),
            "actions": random.uniform(-1, 1, (n, 2)).astype(np.float32),
            "rewards": random.normal(size=n),
            "masks": random.integers(0, 2, n).astype(np.bool_),
        }

    def describe(self):
        fields = schema.input_fields(self.rows, where="memory")
        return Description("memory", "pictures", "sha256:0", fields, self.lengths)

    def read(self, ranges):
        for episodes in ranges:
            rows = slice(episodes.first_row, episodes.first_row + episodes.rows)
            yield Block.of(episodes, {n: v[rows] for n, v in self.rows.items()})


def test_f6_images_stay_what_they_are(tmp_path):
    source = Pictures((600, 700, 800))
    own = Task(1, "own rewards", "pictures-v0", "stored")
    plan = make_plan_of(source, [own], tmp_path)
    assert len(plan.parts[0].blocks()) > 1  # by bytes: there are few rows
    made = write(plan)
    store = Store(plan.root)
    for name in ("observations", "actions"):
        found = store.read(name)
        assert found.dtype == source.rows[name].dtype
        np.testing.assert_array_equal(found, source.rows[name])
    np.testing.assert_array_equal(
        store.read("rewards", column=0), source.rows["rewards"].astype(np.float32)
    )
    assert store.read("masks").dtype == np.uint8
    # By channel: one figure a pixel would be longer than the data of small sets.
    assert len(made.statistics["observations"].mean) == 3
    assert made.statistics["observations"].count == 2100 * 64 * 64


def make_plan_of(source, tasks, tmp_path):
    return plan_inputs(
        str(tmp_path / "store"),
        describe_inputs([("train", source)]),
        dataset="pictures",
        environment_id="pictures-v0",
        tasks=tasks,
        discounts=(0.9,),
        versions={},
    )


def test_skipping_reads_the_input_once(make_npz, make_plan, make_rows, monkeypatch):
    rows = poison(make_rows(LENGTHS), observations=np.inf)
    options = {"on_bad_episode": "skip", "max_bad_share": 0.2, "part_rows": 6}
    plan = make_plan(make_npz(LENGTHS, **rows), **options)
    assert len(plan.parts) > 3
    reads, real = [], OgbenchNpz.read

    def read(self, ranges):
        reads.append(ranges)
        return real(self, ranges)

    monkeypatch.setattr(OgbenchNpz, "read", read)
    (whole,) = plan.runs(1)
    parts = list(write_parts(whole[:2] + whole[3:]))
    assert len(reads) == 1
    assert sum(part.rows for part in parts) > 0
    assert all(part.rows == sum_of(plan.root, part.folder) for part in parts)


def sum_of(root, folder):
    """Rows that the arrays of a part really have."""
    lengths = arrays.open_array(root, f"{folder}/episode_lengths").read()
    shape = arrays.open_array(root, f"{folder}/observations").shape
    assert shape[0] == lengths.result().sum()
    return shape[0]


@pytest.mark.parametrize("compact", [True, False])
def test_f1_transitions_are_those_of_ogbench(make_npz, make_plan, make_rows, compact):
    path = make_npz((5, 5))
    plan = make_plan(path)
    write(plan)
    store = Store(plan.root)
    observations, actions = store.read("observations"), store.read("actions")
    inner = np.setdiff1d(np.arange(10), [4, 9])
    expected = load_dataset(path, compact_dataset=compact)
    valid = np.arange(len(expected["observations"]))
    if compact:
        valid = np.flatnonzero(expected["valids"])
        after = expected["observations"][valid + 1]
    else:
        after = expected["next_observations"]
    assert len(valid) == len(inner) == 8
    np.testing.assert_array_equal(observations[inner], expected["observations"][valid])
    np.testing.assert_array_equal(observations[inner + 1], after)
    np.testing.assert_array_equal(actions[inner], expected["actions"][valid])


def test_f1_the_last_row_s_action_and_reward_lead_nowhere(
    make_npz, make_plan, make_rows
):
    rows = make_rows((5, 5))
    rows["qpos"][[4, 9], 14:17] = (0.425, 0.1, 0.02)  # solves task 1 there
    plan = make_plan(make_npz((5, 5), **rows))
    write(plan)
    sums = Store(plan.root).read("returns/0.99", column=0)
    assert sums[[4, 9]].tolist() == [0.0, 0.0]
    rows["qpos"][[4, 9], 14:17] = 5.0
    other = make_plan(make_npz((5, 5), name="other.npz", **rows), out="other")
    write(other)
    np.testing.assert_array_equal(
        Store(other.root).read("returns/0.99", column=0), sums
    )


def test_f3_terminals_in_a_row_hold_no_transition(make_npz, make_plan):
    plan = make_plan(make_npz((4, 1, 1, 5)))
    assert plan.single_row_episodes == 2
    write(plan)
    store = Store(plan.root)
    assert store.episodes().starts.tolist() == [0, 4, 5, 6]
    assert store.read("returns/0.9")[[4, 5]].tolist() == [[0.0] * 3] * 2


LARGE = """
import re, sys
from pathlib import Path
from pipeline.assembly.parts import write_parts
from pipeline.assembly.plan import describe_inputs, plan_inputs
from pipeline.sources.rewarded_npz import RewardedNpz
from pipeline.store.manifest import Task

task = Task(1, "own", "pictures-v0", "stored")
inputs = describe_inputs([("train", RewardedNpz(sys.argv[1]))])
plan = plan_inputs(sys.argv[2], inputs, dataset="pictures",
                  environment_id="pictures-v0", tasks=[task], discounts=(0.9,))
list(write_parts(plan.parts))
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def peak_of_writing(npz: Path, store: Path) -> int:
    """Writes a store in a process of its own; returns its peak memory in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE, str(npz), str(store)],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    return int(done.stdout) << 10


@pytest.mark.slow
def test_f6_memory_does_not_grow_with_the_images(tmp_path):
    peaks = []
    for episodes in (400, 1200):
        n = 100 * episodes
        terminals = np.arange(1, n + 1) % 100 == 0
        np.savez(
            tmp_path / "images.npz",
            observations=np.random.default_rng(0).integers(
                0, 256, (n, 64, 64, 3), np.uint8
            ),
            actions=np.zeros((n, 1), np.float32),
            rewards=np.zeros(n),
            masks=np.ones(n, bool),
            terminals=terminals,
        )
        # The least of three: threads that write at once add up to a fifth by chance.
        peaks.append(
            min(
                peak_of_writing(tmp_path / "images.npz", tmp_path / f"{n}-{attempt}")
                for attempt in range(3)
            )
        )
    # As much as a process takes that has loaded all this, and a few blocks.
    assert peaks[1] < 450e6 < 400 * 100 * 64 * 64 * 3
    assert peaks[1] < 1.2 * peaks[0]
