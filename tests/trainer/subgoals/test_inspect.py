"""Sub-goals: compared with what came, decoded as far as observations say, drawn."""

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.frames import PhysicsState
from pipeline.domains.opengl import NoBackendError
from pipeline.store import files
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.runs import LIMIT, FakeTrainer
from tests.stores import write_store
from trainer.evaluation.environments import Episode
from trainer.runs.folder import RunFolder, open_folder
from trainer.runs.run import read_run
from trainer.subgoals import inspect
from trainer.subgoals.configurations import StoredRow, find_nearest, make_configurations
from trainer.subgoals.inspect import Inspection, inspect_subgoals
from trainer.subgoals.traces import Trace, compare, mean_by_horizon, play_traces


def trace(observations: Any, horizons: Any, subgoals: Any, index: int = 0) -> Trace:
    observations = np.asarray(observations, np.float32)
    return Trace(
        Episode(index, False, 0.0, len(observations)),
        observations,
        np.zeros((len(observations), 1), np.float32),
        np.asarray(horizons, np.float32),
        np.asarray(subgoals, np.float32),
    )


def test_a_prediction_is_compared_with_the_state_that_many_steps_later() -> None:
    # One component moves by 1 a step and has deviation 2; the other never moves.
    observations = [[0, 5], [1, 5], [2, 5], [3, 5]]
    # In 2 steps exact; in 1.4, which is 1, off by 3 and by 4; the rest goes too far.
    subgoals = [[2, 5], [5, 9], [9, 9], [9, 9]]
    found = compare([trace(observations, [2, 1.4, 2, 1], subgoals, 7)], (2.0, 0.0))
    assert found.episodes.tolist() == [7, 7]
    assert found.steps.tolist() == [0, 1]
    assert found.horizons.tolist() == [2, 1]
    np.testing.assert_allclose(found.errors, [0, 5])
    np.testing.assert_allclose(found.relative_errors, [0, 3 / 2])
    np.testing.assert_allclose(found.relative_changes, [1, 1 / 2])


def test_episodes_are_not_joined() -> None:
    one = trace([[0.0], [1.0]], [1, 1], [[1.0], [9.0]], 0)
    other = trace([[5.0], [6.0]], [1, 1], [[6.0], [9.0]], 1)
    found = compare([one, other], (1.0,))
    assert list(zip(found.episodes, found.steps, strict=True)) == [(0, 0), (1, 0)]
    assert not found.errors.any()


def test_means_by_horizon() -> None:
    means = mean_by_horizon(np.array([1.0, 3.0, 5.0]), np.array([2, 2, 3]), 4)
    np.testing.assert_array_equal(means, [np.nan, np.nan, 2, 5, np.nan])


def test_an_agent_without_subgoals_is_refused() -> None:
    class Plain:
        chunk = 1

    plain: Any = Plain()
    with pytest.raises(ValueError, match="Plain predicts no sub-goals"):
        play_traces(plain, plain, {}, episodes=1, seed=0)


class PointStore(Store):
    """A store of a point mass: its observation is its qpos."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        fields = self.manifest.fields
        state = dict.fromkeys(("qpos", "qvel"), fields["observations"])
        self.manifest = dataclasses.replace(self.manifest, fields={**fields, **state})

    def read_rows(self, part: Any, field: str, first: int, last: int) -> Any:
        physics = field in ("qpos", "qvel")
        stored = "observations" if physics else field
        return super().read_rows(part, stored, first, last)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One of two parts."""
    return PointStore(write_store(tmp_path_factory.mktemp("data") / "s", S=2, A=2))


@pytest.mark.parametrize("chunk_rows", [7, 1000])
def test_nearest_rows_are_those_of_a_search_by_hand(
    store: Store, chunk_rows: int
) -> None:
    everything = store.read("observations")
    rng = np.random.default_rng(0)
    queries = rng.normal(scale=everything.std(axis=0), size=(20, 2)) + everything.mean()
    queries = np.r_[queries.astype(np.float32), everything[[3, 90]]]
    deviations = everything.std(axis=0)
    distances = np.linalg.norm(
        (queries[:, None] - everything[None]) / deviations, axis=-1
    ) / np.sqrt(2)
    found = find_nearest(store, queries, chunk_rows=chunk_rows)
    first_part = store.manifest.parts[0].rows
    rows = [one.row + first_part * one.part for one in found]
    assert rows == distances.argmin(axis=1).tolist()
    assert {one.part for one in found} == {0, 1}
    np.testing.assert_allclose(
        [one.distance for one in found], distances.min(axis=1), rtol=1e-3, atol=1e-5
    )
    for one, row in zip(found, rows, strict=True):
        np.testing.assert_array_equal(one.observation, everything[row])
        np.testing.assert_allclose(one.state.qpos, everything[row])


def test_a_store_without_physics_states_is_refused(tmp_path: Path) -> None:
    bare = Store(str(write_store(tmp_path / "store", S=2, A=2)))
    with pytest.raises(DataFormatError, match="expected the fields qpos and qvel"):
        find_nearest(bare, np.zeros((1, 2), np.float32))


def scene_row(seed: int) -> StoredRow:
    """A row of the scene domain, observed as OGBench does: see its environment."""
    rng = np.random.default_rng(seed)
    qpos = rng.uniform(-0.2, 0.2, 25)
    qpos[17:21] = (np.cos(0.4), 0, 0, np.sin(0.4))
    buttons = rng.integers(0, 2, 2)
    observation = np.concatenate(
        [
            qpos[:6],
            rng.normal(size=13),  # Velocities, effector, gripper.
            10 * (qpos[14:17] - [0.425, 0, 0]),
            qpos[17:21],
            rng.normal(size=2),  # Yaw of the cube.
            *([*np.eye(2)[buttons[i]], 120 * qpos[21 + i], 0.3] for i in range(2)),
            [18 * qpos[23], 0.1, 15 * qpos[24], 0.2],
        ]
    ).astype(np.float32)
    assert len(observation) == 40
    return StoredRow(0, 0, 0.1, observation, PhysicsState(qpos, np.zeros(24), buttons))


def test_what_an_observation_says_is_drawn_as_predicted() -> None:
    row, goal = scene_row(0), scene_row(1)
    (made,) = make_configurations("scene", goal.observation[None], [row])
    assert made.decoded
    said = np.r_[0:6, 14:25]
    np.testing.assert_allclose(made.state.qpos[said], goal.state.qpos[said], atol=1e-6)
    gripper = np.r_[6:14]
    np.testing.assert_array_equal(made.state.qpos[gripper], row.state.qpos[gripper])
    np.testing.assert_array_equal(made.state.button_states, goal.state.button_states)
    # A prediction's quaternion has no length of one; what is drawn must.
    longer = goal.observation.copy()
    longer[22:26] *= 1.7
    (same,) = make_configurations("scene", longer[None], [row])
    np.testing.assert_allclose(same.state.qpos, made.state.qpos, atol=1e-6)


@pytest.mark.parametrize("recipe", ["scene", "stored"])
def test_a_layout_that_is_another_is_not_decoded(recipe: Any) -> None:
    row, goal = scene_row(0), scene_row(1)
    if recipe == "scene":
        row.state.qpos[24] += 0.1  # Not what its observation says.
    (made,) = make_configurations(recipe, goal.observation[None], [row])
    assert not made.decoded
    assert made.state is row.state


def test_an_ant_is_drawn_as_predicted() -> None:
    rng = np.random.default_rng(0)
    observation, goal = rng.normal(size=(2, 29)).astype(np.float32)
    for each in (observation, goal):
        each[3:7] /= np.linalg.norm(each[3:7])
    state = PhysicsState(observation[:15].astype(np.float64), np.zeros(14), None)
    row = StoredRow(0, 0, 0.1, observation, state)
    (made,) = make_configurations("maze", goal[None], [row])
    assert made.decoded
    np.testing.assert_allclose(made.state.qpos, goal[:15], atol=1e-6)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("subgoals") / "run"
    trainer = FakeTrainer(folder)
    trainer.commit(10)
    trainer.close()
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


class Sketcher:
    """Stands in for the painter where no picture is wanted."""

    drawn: list[tuple[PhysicsState, PhysicsState]]

    def __init__(self, spec: Any) -> None:
        Sketcher.drawn = []

    def __enter__(self) -> "Sketcher":
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def replay(self, seed: int, episode: int, seen: Any, actions: Any) -> Any:
        return [PhysicsState(each.astype(float), each, None) for each in seen]

    def draw(self, now: PhysicsState, ghost: PhysicsState) -> Any:
        self.drawn.append((now, ghost))
        return np.full((30, 40, 3), len(self.drawn), np.uint8)


def write_inspection(
    run: Path, store: Store, out: Path, asked: Inspection
) -> tuple[list[Any], str]:
    """Inspects a run; returns the files and what was printed."""
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    written = inspect_subgoals(
        RunFolder.open(run), store, open_folder(out), asked, console=console
    )
    return written, shown.getvalue()


def test_an_inspection_from_run_to_files(
    run: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect, "Painter", Sketcher)
    asked = Inspection(episodes=2, frames=4, training_seed=4, video=True)
    written, shown = write_inspection(run, store, tmp_path / "out", asked)
    assert [path.name for path in written] == [
        *("subgoals.json", "subgoals.npz", "subgoal_errors.svg"),
        *("maze_recorded.svg", "maze_values.svg", "maze_policy.svg"),
        *("subgoals.svg", "rollout.webm"),
    ]
    for picture in written[2:-1]:
        assert "prefers-color-scheme: dark" in picture.read_text()
    # Four frames as they were rendered, and no other pixels.
    assert written[-2].read_text().count("<image") == 4
    assert written[-1].read_bytes().startswith(b"\x1aE\xdf\xa3")  # Matroska's.
    report = json.loads(written[0].read_text())
    assert (report["step"], report["seed"], report["task"]) == (10, 4, 1)
    arrays = np.load(written[1])
    assert arrays["episode_lengths"].tolist() == [LIMIT, LIMIT]
    # What is written of a step follows from the arrays.
    assert len(report["steps"]) == report["summary"]["compared"] > 50
    for line in report["steps"][::17]:
        at = line["episode"] * LIMIT + line["step"]
        assert line["horizon"] == round(float(arrays["horizons"][at]))
        error = arrays["subgoals"][at] - arrays["observations"][at + line["horizon"]]
        assert line["error"] == pytest.approx(np.linalg.norm(error), rel=1e-4)
    assert sum(report["summary"]["horizon_counts"]) == 2 * LIMIT
    assert [frame["step"] for frame in report["frames"]] == [0, 14, 29, 44]
    # A point is drawn where it is, and its ghost where it was predicted.
    assert all(frame["decoded"] for frame in report["frames"])
    now, ghost = Sketcher.drawn[0]
    np.testing.assert_allclose(now.qpos, arrays["observations"][0])
    np.testing.assert_allclose(ghost.qpos, arrays["subgoals"][0], rtol=1e-6)
    assert f"step 10, seed 4: {report['summary']['compared']} of 120 sub-goals" in (
        shown
    )


def test_horizons_beyond_every_episode_leave_nothing_to_compare(
    run: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play_far(*args: Any, **settings: Any) -> list[Trace]:
        return [
            dataclasses.replace(each, horizons=np.full_like(each.horizons, LIMIT))
            for each in play_traces(*args, **settings)
        ]

    monkeypatch.setattr(inspect, "play_traces", play_far)
    monkeypatch.setattr(inspect, "Painter", Sketcher)
    asked = Inspection(episodes=1, frames=1)
    written, shown = write_inspection(run, store, tmp_path / "out", asked)
    summary = json.loads(written[0].read_text())["summary"]
    assert (summary["steps"], summary["compared"]) == (LIMIT, 0)
    # Not 0, which would say that predictions are exact.
    for name in ("mean_error", "mean_relative_error", "mean_relative_change"):
        assert summary[name] is None
    assert set(summary["error_by_horizon"]) == {None}
    line = " ".join(shown.split())
    assert "0 of 60 sub-goals compared, 60.0 steps ahead on average; nothing to" in line
    assert "standard deviations" not in line


def test_a_maze_is_drawn_from_above_only_if_its_goal_is_known(
    run: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = read_run(RunFolder.open(run))
    task = dataclasses.replace(known.task, recipe="stored", goal={})
    own = dataclasses.replace(known, task=task)
    monkeypatch.setattr(inspect, "read_run", lambda folder: own)
    monkeypatch.setattr(inspect, "Painter", Sketcher)
    asked = Inspection(episodes=1, frames=1)
    written, _ = write_inspection(run, store, tmp_path / "out", asked)
    assert [path.name for path in written] == [
        *("subgoals.json", "subgoals.npz", "subgoal_errors.svg", "subgoals.svg")
    ]


def test_without_a_backend_the_figures_are_still_there(
    run: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: Any) -> Any:
        raise NoBackendError("nothing is drawn, for a test")

    monkeypatch.setattr(inspect, "Painter", refuse)
    shown, out = io.StringIO(), run / "subgoals"
    out.mkdir()
    for name in ("subgoals.json", "subgoals.svg", "rollout.webm", "maze.png"):
        (out / name).write_bytes(b"of an earlier one")
    write, earlier = files.write, []

    def write_and_look(root: str, name: str, data: bytes) -> None:
        earlier.append((out / "subgoals.json").exists())
        write(root, name, data)

    monkeypatch.setattr(files, "write", write_and_look)
    written = inspect_subgoals(
        RunFolder.open(run),
        store,
        open_folder(out),
        Inspection(episodes=1),
        console=Console(file=shown, width=200),
    )
    assert sorted(path.name for path in written) == sorted(
        path.name for path in out.iterdir()
    )
    assert "no picture of the scene: nothing is drawn, for a test" in shown.getvalue()
    # A report shows no new picture as one of the earlier step.
    assert earlier
    assert not any(earlier)


def test_wrong_inspections(run: Path, store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--training-seed: expected one of \[3, 4\]"):
        inspect_subgoals(
            RunFolder.open(run),
            store,
            open_folder(tmp_path),
            Inspection(training_seed=0),
        )
    with pytest.raises(DataFormatError, match=r"expected steps of \[10\], got \[30\]"):
        inspect_subgoals(
            RunFolder.open(run), store, open_folder(tmp_path), Inspection(step=30)
        )
    with pytest.raises(ValueError, match="frames: expected at least 1, got 0"):
        Inspection(frames=0)
    other = Store(str(write_store(tmp_path / "other", dataset="scene-play")))
    with pytest.raises(DataFormatError, match="got one of scene-play"):
        inspect_subgoals(RunFolder.open(run), other, open_folder(tmp_path))
    assert dataclasses.asdict(Inspection())["episodes"] == 5


def test_an_inspection_acts_in_the_environment_that_is_given(
    run: Path, store: Store, tmp_path: Path
) -> None:
    line = TaskEnvironment("Line-v0", {}, "tests.own_environment")
    with pytest.raises(DataFormatError, match=r"Line-v0: expected .*, as in the data"):
        inspect_subgoals(
            RunFolder.open(run),
            store,
            open_folder(tmp_path),
            Inspection(environment=line),
        )
