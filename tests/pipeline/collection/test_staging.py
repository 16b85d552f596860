import dataclasses

import numpy as np
import pytest

from pipeline.collection import staging
from pipeline.collection.staging import CollectedEpisodes, Recipe
from pipeline.sources.episodes import cut
from pipeline.store.errors import DataFormatError

RECIPE = Recipe(
    dataset="cube-single-play",
    environment_id="cube-single-v0",
    seed=3,
    episodes=4,
    val_episodes=2,
    rows=6,
    versions={"mujoco": "0"},
)


def stage_all(root, make_rows, recipe=RECIPE):
    for plan in staging.start(root, recipe):
        seed = plan.index + 100 * (plan.split == "val")
        staging.stage(plan, make_rows((plan.rows,), seed))


def test_every_episode_has_a_seed_of_its_own(tmp_path):
    plans = staging.start(str(tmp_path), RECIPE)
    assert [(plan.split, plan.index) for plan in plans] == [
        *(("train", i) for i in range(4)),
        *(("val", i) for i in range(2)),
    ]
    assert len({plan.seed for plan in plans}) == 6


def test_seeds_depend_on_split_and_index_alone(tmp_path):
    longer = dataclasses.replace(RECIPE, episodes=9, val_episodes=5)
    seeds = {}
    for root, recipe in (("a", RECIPE), ("b", longer)):
        plans = staging.start(str(tmp_path / root), recipe)
        seeds[root] = {(plan.split, plan.index): plan.seed for plan in plans}
    assert seeds["a"].items() <= seeds["b"].items()
    # No training episode of the longer one is a validation episode of the shorter.
    trained = {seed for (split, _), seed in seeds["b"].items() if split == "train"}
    held_out = {seed for (split, _), seed in seeds["a"].items() if split == "val"}
    assert not trained & held_out


def test_what_is_staged_is_not_made_again(tmp_path, make_rows):
    root = str(tmp_path)
    plans = staging.start(root, RECIPE)
    for plan in (plans[1], plans[4]):
        staging.stage(plan, make_rows((6,)))
    assert staging.count_staged(root) == 2
    missing = staging.start(root, RECIPE)
    assert missing == [plans[0], plans[2], plans[3], plans[5]]


def test_staging_again_rewrites_the_same_bytes(tmp_path, make_rows, read_tree):
    root = str(tmp_path)
    stage_all(root, make_rows)
    before = read_tree(root)
    staging.finish(root, RECIPE)
    stage_all(root, make_rows)
    assert read_tree(root) == before


@pytest.mark.parametrize(
    ("change", "difference"),
    [({"seed": 4}, "seed 3 there and 4 here"), ({"rows": 7}, "rows 6 there and 7")],
)
def test_another_collection_is_refused(tmp_path, change, difference):
    staging.start(str(tmp_path), RECIPE)
    with pytest.raises(DataFormatError, match=difference):
        staging.start(str(tmp_path), dataclasses.replace(RECIPE, **change))


def test_staged_episodes_read_as_one_input(tmp_path, make_rows):
    root = str(tmp_path)
    stage_all(root, make_rows)
    source = CollectedEpisodes(root, RECIPE, "val")
    facts = source.describe()
    assert facts.lengths == (6, 6)
    assert facts.digest == RECIPE.digest()
    assert "terminals" not in facts.fields
    blocks = list(source.read(cut(facts.episodes, 6)))
    assert [block.indices.tolist() for block in blocks] == [[0], [1]]
    for index, block in enumerate(blocks):
        expected = make_rows((6,), 100 + index)
        for name, values in block.rows.items():
            np.testing.assert_array_equal(values, expected[name])


def test_missing_and_damaged_episodes_are_named(tmp_path, make_rows):
    root = str(tmp_path)
    stage_all(root, make_rows)
    source = CollectedEpisodes(root, RECIPE, "train")
    ranges = cut(source.describe().episodes, 6)
    path = tmp_path / "staging" / "train" / "000002.npz"
    good = path.read_bytes()
    path.write_bytes(good[:100])
    with pytest.raises(DataFormatError, match="expected a staged episode"):
        list(source.read(ranges))
    np.savez(path, **make_rows((2, 4)))
    with pytest.raises(DataFormatError, match=r"6 rows, got terminals at \[1, 5\]"):
        list(source.read(ranges))
    path.unlink()
    with pytest.raises(DataFormatError, match="was not collected"):
        list(source.read(ranges))


def test_whoever_still_collects_what_is_finished_stages_nothing(tmp_path, make_rows):
    plans = staging.start(str(tmp_path), RECIPE)
    staging.stage(plans[0], make_rows((6,)))
    staging.finish(str(tmp_path), RECIPE)
    with pytest.raises(DataFormatError, match="another command has finished this"):
        staging.stage(plans[1], make_rows((6,)))
    assert list(tmp_path.iterdir()) == []


def test_finishing_leaves_what_another_collection_has_staged(
    tmp_path, make_rows, read_tree
):
    stage_all(str(tmp_path), make_rows)
    before = read_tree(tmp_path)
    staging.finish(str(tmp_path), dataclasses.replace(RECIPE, seed=4))
    assert read_tree(tmp_path) == before


def test_finishing_leaves_no_folder(tmp_path, make_rows):
    stage_all(str(tmp_path), make_rows)
    staging.finish(str(tmp_path), RECIPE)
    assert list(tmp_path.iterdir()) == []


def test_finishing_and_starting_leave_files_of_others(tmp_path, make_rows, read_tree):
    root, staging_folder = str(tmp_path), tmp_path / "staging"
    stage_all(root, make_rows)
    for name in ("photo.jpg", "train/old.npz", "train/deep/000001.npz"):
        (staging_folder / name).parent.mkdir(exist_ok=True)
        (staging_folder / name).write_bytes(b"mine")
    assert staging.start(root, RECIPE) == []
    before = read_tree(root)
    assert len(before) == 7 + 3
    staging.finish(root, RECIPE)
    mine = {name: data for name, data in before.items() if data == b"mine"}
    assert read_tree(root) == mine


def test_a_collection_is_not_begun_beside_files_of_others(tmp_path, read_tree):
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "photo.jpg").write_bytes(b"mine")
    with pytest.raises(DataFormatError, match=r"holds staging/photo\.jpg"):
        staging.start(str(tmp_path), RECIPE)
    assert read_tree(tmp_path) == {"staging/photo.jpg": b"mine"}
