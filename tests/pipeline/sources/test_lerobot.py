import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.assembly.plan import describe_inputs
from pipeline.cli import main
from pipeline.sources.detection import find_sources
from pipeline.sources.episode_reader import ReaderSource
from pipeline.sources.episodes import cut
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.fuzz import MUTATIONS, drill, mutate_bytes, mutate_json

COUNTS = (4, 6, 3, 5)
READER = "pipeline.sources.lerobot:LeRobotReader"
PATHS = {
    2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    3: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}


def make_episodes(counts=COUNTS, without=()):
    """Frames of each episode; all but the second end in success."""
    random = np.random.default_rng(0)
    episodes = []
    for n in counts:
        last = np.arange(n) == n - 1
        frames = {
            "observation.state": random.normal(size=(n, 3)).astype("f4"),
            "observation.environment_state": random.normal(size=(n, 2)).astype("f4"),
            "action": random.uniform(-1, 1, (n, 2)).astype("f4"),
            "next.reward": random.normal(size=n).astype("f4"),
            "next.done": last,
            "next.success": last & (len(episodes) != 1),
        }
        episodes.append({k: v for k, v in frames.items() if k not in without})
    return episodes


def to_table(frames, index, first):
    """As LeRobot's writer has it, through the library datasets."""
    n = len(frames["action"])

    columns = {
        name: (
            pa.FixedSizeListArray.from_arrays(values.ravel(), values.shape[1])
            if values.ndim > 1
            else pa.array(values)
        )
        for name, values in frames.items()
    }
    return pa.table(
        {
            **columns,
            "observation.image": pa.array([{"bytes": b"png", "path": None}] * n),
            "timestamp": pa.array(np.arange(n, dtype="f4") / 10),
            "frame_index": pa.array(np.arange(n)),
            "episode_index": pa.array(np.full(n, index)),
            "index": pa.array(np.arange(first, first + n)),
            "task_index": pa.array(np.zeros(n, "i8")),
        }
    )


def name_episodes_by_words(root):
    """Spoils the list of episodes: their numbers become texts."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    words = table.column("episode_index").cast(pa.string())
    place = table.column_names.index("episode_index")
    pq.write_table(table.set_column(place, "episode_index", words), path)


def write_lerobot(root, version, episodes, splits=None):
    """A data set in the layout of LeRobot's format version; the episodes' tables."""
    counts = [len(frames["action"]) for frames in episodes]
    firsts = np.cumsum([0, *counts])
    tables = [to_table(e, i, int(firsts[i])) for i, e in enumerate(episodes)]
    for folder in ("data/chunk-000", "meta/episodes/chunk-000"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    if version == 2:
        for index, table in enumerate(tables):
            # Lists of any width, as older versions of the library datasets wrote.
            lists = [
                table.column(n).cast(pa.list_(pa.float32()))
                if n in ("action", "observation.state")
                else table.column(n)
                for n in table.column_names
            ]
            table = pa.table(lists, names=table.column_names)
            pq.write_table(table, root / f"data/chunk-000/episode_{index:06d}.parquet")
        lines = [
            {"episode_index": index, "tasks": ["push"], "length": n}
            for index, n in enumerate(counts)
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (root / "meta/episodes.jsonl").write_text(text)
    else:
        # Two episodes a file, a row group each.
        for file in range(-(-len(tables) // 2)):
            path = root / f"data/chunk-000/file-{file:03d}.parquet"
            with pq.ParquetWriter(path, tables[0].schema) as writer:
                for table in tables[2 * file : 2 * file + 2]:
                    writer.write_table(table)
        index = np.arange(len(counts))
        known = {
            "episode_index": index,
            "data/chunk_index": np.zeros_like(index),
            "data/file_index": index // 2,
            "dataset_from_index": firsts[:-1],
            "dataset_to_index": firsts[1:],
            "tasks": [["push"]] * len(counts),
            "length": counts,
        }
        path = root / "meta/episodes/chunk-000/file-000.parquet"
        pq.write_table(pa.table(known), path)
    info = {
        "codebase_version": {2: "v2.1", 3: "v3.0"}[version],
        "robot_type": "so100",
        "total_episodes": len(counts),
        "total_frames": sum(counts),
        "chunks_size": 1000,
        "fps": 10,
        "splits": splits or {"train": f"0:{len(counts)}"},
        "data_path": PATHS[version],
        "features": {
            **{name: {"dtype": "float32"} for name in episodes[0]},
            "observation.images.top": {"dtype": "video", "shape": [3, 48, 64]},
        },
    }
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    return ReaderSource(READER, f"{root}/meta/info.json")


def read_all(source, rows=1000):
    blocks = list(source.read(cut(source.describe().episodes, rows)))
    return {n: np.concatenate([b.rows[n] for b in blocks]) for n in blocks[0].rows}


def expected_rows(frames):
    """Rows of an episode: T+1, or T where the state it ends in is not known."""
    states = np.hstack(
        [frames["observation.environment_state"], frames["observation.state"]]
    )
    n = len(states)
    actions, rewards = frames["action"], frames["next.reward"]
    masks = ~frames["next.success"]
    zero = np.zeros((1, 2), "f4")
    if frames["next.success"][-1]:
        return {
            "observations": np.vstack([states, states[-1:]]),
            "actions": np.vstack([actions, zero]),
            "rewards": np.append(rewards, 0),
            "masks": np.append(masks, True),
        }
    return {
        "observations": states,
        "actions": np.vstack([actions[:-1], zero]),
        "rewards": np.append(rewards[:-1], 0),
        "masks": np.append(masks[: n - 1], True),
    }


@pytest.mark.parametrize("rows", [4, 1000])
@pytest.mark.parametrize("version", [2, 3])
def test_both_layouts_are_read_as_the_same(tmp_path, version, rows):
    episodes = make_episodes()
    source = write_lerobot(tmp_path / "pusht", version, episodes)
    facts = source.describe()
    assert facts.name == "pusht"
    assert facts.lengths == (5, 6, 4, 6)
    assert facts.fields["observations"].unit == (
        "side by side: environment_state[2], state[3]"
    )
    assert "observation.image" in facts.ignored
    assert "observation.images.top" in facts.ignored
    assert "recorded of so100" in facts.notes
    assert facts.warnings == ()
    found = read_all(source, rows)
    for name in found:
        values = np.concatenate([expected_rows(each)[name] for each in episodes])
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("version", [2, 3])
def test_a_data_set_becomes_a_store_by_its_splits(tmp_path, version):
    episodes = make_episodes()
    splits = {"train": "0:2", "val": "2:3", "test": "3:4"}
    write_lerobot(tmp_path / "pusht", version, episodes, splits)
    kind, found = find_sources(str(tmp_path / "pusht"), dataset="pusht")
    assert kind == "lerobot"
    assert [(split, source.describe().lengths) for split, source in found] == [
        ("train", (5, 6)),
        ("val", (4,)),
    ]
    first, second = (source.describe() for _, source in found)
    assert first.digest != second.digest
    assert "splits not used: test" in first.notes
    (values,) = [s for split, s in found if split == "val"]
    np.testing.assert_array_equal(
        read_all(values)["observations"], expected_rows(episodes[2])["observations"]
    )


def test_a_folder_is_sharded(tmp_path):
    episodes = make_episodes()
    write_lerobot(tmp_path / "pusht", 3, episodes)
    out = str(tmp_path / "store")
    assert main(["shard", str(tmp_path / "pusht"), "--dataset", "p", "--out", out]) == 0
    store = Store(out)
    for name in ("observations", "actions"):
        values = np.concatenate([expected_rows(each)[name] for each in episodes])
        np.testing.assert_array_equal(store.read(name), values)
    assert main(["verify", out, "--deep"]) == 0


def test_without_success_the_end_of_an_episode_is_that_of_the_task(tmp_path):
    episodes = make_episodes(without=("next.success",))
    source = write_lerobot(tmp_path / "a", 3, episodes)
    facts = source.describe()
    assert "next.done is taken for the end of the task" in facts.warnings[0]
    assert facts.lengths == tuple(n + 1 for n in COUNTS)
    assert (~read_all(source)["masks"]).sum() == len(COUNTS)


def test_without_rewards_they_are_of_success(tmp_path):
    source = write_lerobot(tmp_path / "a", 2, make_episodes(without=("next.reward",)))
    assert "rewards are 1 where next.success, else 0" in source.describe().notes[-1]
    found = read_all(source)
    np.testing.assert_array_equal(found["rewards"] == 1, ~found["masks"])
    source = write_lerobot(
        tmp_path / "b", 2, make_episodes(without=("next.reward", "next.success"))
    )
    with pytest.raises(DataFormatError, match=r"next\.reward or next\.success"):
        source.describe()


def change_info(**changes):
    def change(root):
        path = root / "meta/info.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("version", "spoil", "message"),
    [
        (2, change_info(codebase_version="v1.6"), "v2.x or v3.x, got 'v1.6'"),
        (3, change_info(data_path="../../{chunk_index}"), r"expected files at data/"),
        (3, change_info(total_episodes=5), "5 in all, got 4"),
        (2, change_info(chunks_size=0), "chunks_size as a number from 1 on, got 0"),
        (2, change_info(splits={"train": "1-2"}), "as FIRST:LAST, got '1-2'"),
        (2, change_info(splits={"train": "0:2", "val": "1:3"}), "in one split"),
        (2, change_info(splits={"train": "0:9"}), "within 4 episodes, got 0:9"),
        (
            2,
            lambda root: (root / "data/chunk-000/episode_000001.parquet").unlink(),
            "episode_000001.parquet: expected a file, found nothing",
        ),
        (
            2,
            lambda root: (root / "data/chunk-000/episode_000001.parquet").write_bytes(
                (root / "data/chunk-000/episode_000002.parquet").read_bytes()
            ),
            "expected rows 0 to 5, got 3 rows",
        ),
        (
            3,
            lambda root: (root / "data/chunk-000/file-001.parquet").write_bytes(
                (root / "data/chunk-000/file-000.parquet").read_bytes()
            ),
            "expected episode 2 in rows 0 to 2",
        ),
        (
            3,
            name_episodes_by_words,
            "got none called episode_index; fetch the file again",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, version, spoil, message):
    root = tmp_path / "pusht"
    write_lerobot(root, version, make_episodes())
    spoil(root)
    with pytest.raises((DataFormatError, UsageError), match=message) as said:
        describe_inputs(find_sources(str(root), dataset="pusht")[1])
    assert "\n" not in str(said.value)


def test_a_folder_without_its_info_is_told_what_was_expected(tmp_path):
    with pytest.raises(UsageError, match=r"meta/info\.json, found an empty folder"):
        find_sources(str(tmp_path), dataset="x", kind="lerobot")


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path, count):
    root = tmp_path / "pusht"
    source = write_lerobot(root, 3, make_episodes((3, 2)))
    small = root / "data/chunk-000/file-000.parquet"
    places = {
        root / "meta/info.json": mutate_json,
        small: mutate_bytes,
        root / "meta/episodes/chunk-000/file-000.parquet": mutate_bytes,
    }
    valid = {path: path.read_bytes() for path in places}

    def mutate(draw):
        path = draw.choice(list(places))
        return path, places[path](valid[path], draw)

    def read(spoilt):
        path, data = spoilt
        path.write_bytes(data)
        try:
            with np.errstate(all="ignore"):
                read_all(source)
        finally:
            path.write_bytes(valid[path])

    found = drill(mutate, read, count=count)
    assert found.read > 0 < found.refused
