import dataclasses

import numpy as np
import pytest

from pipeline.assembly.append import claim, commit_append, plan_append
from pipeline.assembly.commit import commit_store
from pipeline.assembly.known_episodes import digest_episodes, read_digests
from pipeline.assembly.plan import PlanOptions, describe_inputs
from pipeline.cli import main
from pipeline.inspection.verify import verify_store
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import EPISODE_DIGESTS
from pipeline.store.reader import Store
from tests.parts import write_alone
from tests.stores import version_1

LENGTHS = (5, 5, 7, 4, 1, 6)


@pytest.fixture
def plan(make_npz, make_plan):
    val = make_npz((3, 4), name="v.npz", seed=1)
    plan = make_plan(make_npz(LENGTHS), val=val)
    commit_store(plan, write_alone(*plan.parts))
    return plan


def add(root, path, *, part_rows=12, **options):
    inputs = describe_inputs([("train", OgbenchNpz(path))])
    asked = plan_append(root, inputs, PlanOptions(part_rows=part_rows), **options)
    if asked is None:
        return None
    with claim(asked) as claimed:
        parts = write_alone(*asked.added.parts)
        return commit_append(asked, parts, claimed)


@pytest.fixture
def make_of(make_npz, make_rows):
    """Files of chosen episodes, each ``(seed, lengths, index)``."""

    def make(*episodes, name="more.npz"):
        chosen = []
        for seed, lengths, index in episodes:
            ends = np.cumsum(lengths)
            rows = make_rows(lengths, seed)
            place = slice(ends[index] - lengths[index], ends[index])
            chosen.append({key: values[place] for key, values in rows.items()})
        lengths = [len(each["terminals"]) for each in chosen]
        joined = {k: np.concatenate([e[k] for e in chosen]) for k in chosen[0]}
        return make_npz(lengths, name=name, **joined)

    return make


def test_a_digest_is_of_what_an_episode_holds(make_rows):
    rows, lengths = make_rows(LENGTHS), np.array(LENGTHS)
    digests = digest_episodes(rows, lengths)
    assert len(set(digests.tolist())) == len(LENGTHS)
    alone = {name: values[10:17] for name, values in rows.items()}
    assert digest_episodes(alone, np.array([7])) == digests[2]
    columns = {name: np.asfortranarray(values) for name, values in rows.items()}
    np.testing.assert_array_equal(digest_episodes(columns, lengths), digests)
    for name in ("observations", "actions"):
        other = {**rows, name: rows[name].copy()}
        other[name][12, 1] += 1
        unequal = digest_episodes(other, lengths) != digests
        assert unequal.tolist() == [False, False, True, False, False, False]


def test_the_same_file_under_another_name_is_left_out(plan, make_npz, read_tree):
    before = read_tree(plan.root)
    assert add(plan.root, make_npz(LENGTHS, name="b.npz", compressed=False)) is None
    assert read_tree(plan.root) == before


@pytest.mark.parametrize("part_rows", [6, 100])
def test_the_same_episodes_in_another_order_are_refused(
    plan, make_of, read_tree, part_rows
):
    before = read_tree(plan.root)
    path = make_of(*((0, LENGTHS, index) for index in (5, 3, 2, 1, 0)))
    first = rf"{plan.parts[1].folder}, from cube-single-play\.npz; nothing was added"
    with pytest.raises(
        DataFormatError, match=f"more.npz: 5 of 5 episodes are .*{first}"
    ):
        add(plan.root, path, part_rows=part_rows)
    assert read_tree(plan.root) == before


def test_one_known_episode_among_new_ones_is_noticed(plan, make_of, read_tree):
    before = read_tree(plan.root)
    # It is of the validation split: to train on it would be worse still.
    path = make_of((7, (6, 9), 0), (1, (3, 4), 1), (7, (6, 9), 1))
    with pytest.raises(
        DataFormatError, match=r"1 of 3 episodes .*episode 1 of .*v\.npz"
    ):
        add(plan.root, path)
    assert read_tree(plan.root) == before
    new = add(plan.root, make_of((7, (6, 9), 0), (7, (6, 9), 1), name="new.npz"))
    assert new.parts[-1].episodes == 2
    assert verify_store(Store(plan.root), deep=True) == []


def test_whoever_means_it_has_them_twice(plan, make_of):
    path = make_of((0, LENGTHS, 1), (7, (6,), 0))
    made = add(plan.root, path, on_known_episode="keep")
    digests = [read_digests(Store(plan.root), part) for part in made.parts]
    assert set(digests[-1].tolist()) & set(digests[0].tolist())


def test_what_keeps_no_digests_is_looked_through(make_npz, make_plan, make_of):
    plan = make_plan(make_npz(LENGTHS))
    with version_1():
        plans = [dataclasses.replace(part, keyed=False) for part in plan.parts]
        commit_store(plan, write_alone(*plans))
    part = Store(plan.root).manifest.parts[1]
    assert EPISODE_DIGESTS not in part.checksums
    with pytest.raises(DataFormatError, match=f"1 of 2 episodes .* 2 of {part.folder}"):
        add(plan.root, make_of((7, (6,), 0), (0, LENGTHS, 5)))
    made = add(plan.root, make_of((7, (6,), 0), name="new.npz"))
    assert EPISODE_DIGESTS not in made.parts[-1].checksums


def test_a_fingerprint_is_of_the_rows_alone(plan):
    value = Store(plan.root).manifest
    parts = []
    for part in value.parts:
        sums = {k: v for k, v in part.checksums.items() if k != EPISODE_DIGESTS}
        assert sums != part.checksums
        parts.append(dataclasses.replace(part, checksums=sums))
    without = dataclasses.replace(value, parts=tuple(parts))
    assert without.fingerprint() == value.fingerprint()


def test_the_command_line_refuses_and_keeps(plan, make_of, capsys):
    path = make_of((0, LENGTHS, 0))
    assert main(["append", plan.root, path]) == 2
    assert capsys.readouterr().err.count("--on-known-episode keep") == 1
    assert main(["append", plan.root, path, "--on-known-episode", "keep"]) == 0
    assert len(Store(plan.root).manifest.parts) == len(plan.parts) + 1
