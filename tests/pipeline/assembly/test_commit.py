import dataclasses
from pathlib import Path

import pytest

from pipeline.assembly.commit import claim, commit_store, find_committed
from pipeline.store import files, reader
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


def write(plan):
    return commit_store(plan, write_alone(*plan.parts))


def test_a_commit_may_be_repeated(make_npz, make_plan, read_tree):
    plan = make_plan(make_npz(LENGTHS))
    made = write(plan)
    before = read_tree(plan.root)
    assert write(plan) == made
    assert read_tree(plan.root) == before
    assert find_committed(plan) == made


def test_a_finished_store_is_never_overwritten(make_npz, make_plan, read_tree):
    plan = make_plan(make_npz(LENGTHS))
    write(plan)
    before = read_tree(plan.root)
    other = make_plan(make_npz((9, 9), name="other.npz"), part_rows=5)
    with pytest.raises(DataFormatError, match="already holds a finished store"):
        find_committed(other)
    with pytest.raises(DataFormatError, match="already holds a finished store"):
        commit_store(other, [_renumbered(plan, part) for part in other.parts])
    # Digests of parts do not contain the name of the data set.
    renamed = dataclasses.replace(plan, dataset="cube-single-noisy")
    for look in (find_committed, write):
        with pytest.raises(DataFormatError, match="finished store of cube-single-play"):
            look(renamed)
    assert read_tree(plan.root) == before


def _renumbered(plan, part):
    done = reader.read_part(plan.root, plan.parts[0].folder)
    return type(done)(**{**vars(done), "index": part.index})


def test_episodes_without_transitions_are_no_store(make_npz, make_plan):
    plan = make_plan(make_npz((1, 1, 1)), val=make_npz((4,), name="v.npz"))
    with pytest.raises(DataFormatError, match="expected an episode of two rows or mor"):
        write(plan)
    assert find_committed(plan) is None


def test_a_missing_part_is_not_committed(make_npz, make_plan):
    plan = make_plan(make_npz(LENGTHS))
    with pytest.raises(DataFormatError, match=r"parts 0 to 1, got \[1\]"):
        commit_store(plan, write_alone(plan.parts[1]))
    with pytest.raises(DataFormatError, match="found none"):
        Store(plan.root)


@pytest.mark.parametrize(
    "name",
    ["observations/c/0/0", "returns/0.9/zarr.json", "part.json", "episode_starts/c/0"],
)
def test_a_store_is_believed_only_if_its_parts_are_there(make_npz, make_plan, name):
    plan = make_plan(make_npz(LENGTHS))
    made = write(plan)
    assert find_committed(plan) == made
    lost = f"{made.parts[1].folder}/{name}"
    Path(plan.root, lost).unlink()
    with pytest.raises(DataFormatError, match=f"is finished, and {lost} is missing"):
        find_committed(plan)


def test_who_was_taken_over_from_commits_nothing(make_npz, make_plan, read_tree):
    plan = make_plan(make_npz(LENGTHS))
    with claim(plan) as first:
        parts = write_alone(*plan.parts)
        with claim(plan, take_over=True) as second:
            before = read_tree(plan.root)
            with pytest.raises(DataFormatError, match="has taken over"):
                commit_store(plan, parts, first)
            assert read_tree(plan.root) == before
            made = commit_store(plan, parts, second)
        # What is there by now is what it was about to commit.
        assert commit_store(plan, parts, first) == made


def test_parts_are_looked_at_again_before_they_are_deleted(
    make_npz, make_plan, read_tree, monkeypatch
):
    """One that is stopped before its deletions deletes nothing of who came after."""
    path = make_npz(LENGTHS)
    mine, theirs = make_plan(path), make_plan(path, part_rows=6)
    assert mine.root == theirs.root
    walk, trees = files.walk_names, []

    def stop(root, folder):
        names = list(walk(root, folder))
        if not trees:
            trees.append(None)
            with claim(theirs, take_over=True) as taken:
                parts = write_alone(*theirs.parts)
                commit_store(theirs, parts, taken)
            trees.append(read_tree(root))
        return names

    write_alone(theirs.parts[0])  # Of an attempt of before: to be deleted as a stray.
    with claim(mine) as claimed:
        parts = write_alone(*mine.parts)
        monkeypatch.setattr(files, "walk_names", stop)
        with pytest.raises(DataFormatError, match="has taken over"):
            commit_store(mine, parts, claimed)
    assert read_tree(mine.root) == trees[1]
    Store(mine.root)


def test_nothing_of_others_is_deleted(make_npz, make_plan, read_tree):
    path = make_npz(LENGTHS)
    plan = make_plan(path)
    folder = plan.parts[0].folder
    names = (
        "notes.txt",
        "parts/photos/a.jpg",
        "parts/00099/notes.txt",
        f"{folder}/notes.txt",
        f"{folder}/observations/notes.txt",
        "staging/a.npz",
    )
    with claim(plan):
        for part in make_plan(path, part_rows=4).parts:  # They become strays.
            write_alone(part)
    for name in names:
        files.write(plan.root, name, b"mine")
    before = read_tree(plan.root)
    assert any(name.startswith("parts/00003-") for name in before)
    write(plan)
    after = read_tree(plan.root)
    assert not any(name.startswith("parts/00003-") for name in after)
    assert {name for name in after if after[name] == b"mine"} == set(names)
    write(make_plan(path, out="clean"))
    assert (
        after.keys() - set(names) == read_tree(make_plan(path, out="clean").root).keys()
    )
