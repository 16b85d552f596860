"""From a predicted observation to a configuration that can be drawn.

An observation of a maze holds the whole physics state. One of a robot arm holds the
joints of the arm and the objects, but not the linkage of the gripper: for what it does
not say, the stored row with the nearest observation stands in.

Dimensions: M queries, S observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.domains.datasets import ARM_QPOS, CUBE_QPOS, find_environment
from pipeline.domains.frames import PhysicsState
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Recipe
from pipeline.store.reader import Store
from trainer.subgoals.traces import vary

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# OGBench's observations of its arm domains: six joints first, 19 numbers of the robot,
# then 9 of each cube, 4 of each button, and last drawer and window, in the order of
# qpos. Lengths are in metres, times these factors.
_JOINTS, _ROBOT, _CUBE, _BUTTON = 6, 19, 9, 4
_CUBE_ORIGIN, _CUBE_FACTOR = np.array([0.425, 0.0, 0.0]), 10.0
_BUTTON_FACTOR, _DRAWER_FACTOR, _WINDOW_FACTOR = 120.0, 18.0, 15.0

# A decoding that gives a stored row's own qpos is the right one: metres and radians.
_AGREES = 1e-3
_CHUNK_ROWS = 1 << 14


@dataclass(frozen=True)
class StoredRow:
    """One row of a store.

    Attributes:
        part: Index of its part.
        row: Within the part.
        distance: Of its observation from the one asked for, as
            ``Comparison.relative_errors`` measure it.
        observation: ``f32[S]``.
        state: Its physics state.
    """

    part: int
    row: int
    distance: float
    observation: Float32
    state: PhysicsState


@dataclass(frozen=True)
class Configuration:
    """What to draw for a predicted observation.

    Attributes:
        state: Physics state.
        decoded: Whether what the observation says was taken from it; else the state
            is the stored row's throughout.
        nearest: The stored row that stands in for the rest.
    """

    state: PhysicsState
    decoded: bool
    nearest: StoredRow


def find_nearest(
    store: Store,
    observations: Float32,
    *,
    split: str = "train",
    chunk_rows: int = _CHUNK_ROWS,
) -> list[StoredRow]:
    """Finds the stored rows with the nearest observations.

    Reads the split once, a chunk at a time: memory is that of ``chunk_rows * (S + M)``
    numbers, whatever the size of the store.

    Args:
        store: With physics states.
        observations: ``f32[M, S]``.
        split: To search.
        chunk_rows: Rows of a read.

    Returns:
        One row each; the first of several that are equally near.

    Raises:
        DataFormatError: If the store holds no physics states.
    """
    fields = store.manifest.fields
    if "qpos" not in fields or "qvel" not in fields:
        raise DataFormatError(
            f"{store.root}: expected the fields qpos and qvel, to draw a sub-goal, "
            f"found {sorted(fields)}; write the store from data that hold them"
        )
    statistics = store.manifest.statistics["observations"]
    varies = vary(statistics.std)
    mean, std = (
        np.asarray(each, np.float64)[varies]
        for each in (statistics.mean, statistics.std)
    )

    def standardised(rows: npt.NDArray[np.generic]) -> Float32:
        flat = rows.reshape(len(rows), -1)[:, varies].astype(np.float64)
        return ((flat - mean) / std).astype(np.float32)

    queries = standardised(observations)
    best = np.full(len(queries), np.inf, np.float32)
    where = np.zeros((len(queries), 2), np.int64)
    parts = store.manifest.parts_of(split)
    for number, part in enumerate(parts):
        for first in range(0, part.rows, chunk_rows):
            last = min(first + chunk_rows, part.rows)
            rows = standardised(store.read_rows(part, "observations", first, last))
            # |q - x|^2 without |q|^2, which is the same for all rows.
            squares = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ queries.T
            nearest = squares.argmin(axis=0)
            found = np.take_along_axis(squares, nearest[None], axis=0)[0]
            better = found < best
            best[better] = found[better]
            where[better, 0], where[better, 1] = number, first + nearest[better]
    result = []
    for query, (number, row) in zip(queries, where.tolist(), strict=True):
        part = parts[number]
        observation = store.read_rows(part, "observations", row, row + 1)
        buttons = None
        if "button_states" in fields:
            buttons = store.read_rows(part, "button_states", row, row + 1)[0]
        difference = query.astype(np.float64) - standardised(observation)[0]
        result.append(
            StoredRow(
                part=part.index,
                row=row,
                distance=float(np.sqrt(np.square(difference).mean())),
                observation=observation[0].ravel(),
                state=PhysicsState(
                    store.read_rows(part, "qpos", row, row + 1)[0].astype(np.float64),
                    store.read_rows(part, "qvel", row, row + 1)[0].astype(np.float64),
                    None if buttons is None else buttons.ravel().astype(np.int64),
                ),
            )
        )
    return result


def configurations(
    recipe: Recipe, observations: Float32, rows: Sequence[StoredRow]
) -> list[Configuration]:
    """Makes configurations of predicted observations.

    Args:
        recipe: Of the task: which family its domain is of.
        observations: ``f32[M, S]``.
        rows: The nearest stored row of each.

    Returns:
        One each. What an observation says is taken from it only if the same reading of
        the stored row's observation gives that row's qpos: a check of the layout.
    """
    made = []
    for observation, row in zip(observations, rows, strict=True):
        own = _decode(recipe, row.observation, row.state)
        decoded = own is not None and _agree(own, row.state)
        state = _decode(recipe, observation, row.state) if decoded else None
        made.append(Configuration(state or row.state, decoded, row))
    return made


def _agree(one: PhysicsState, other: PhysicsState) -> bool:
    """Whether two states are the same, up to rounding."""
    buttons = other.button_states is None or np.array_equal(
        np.asarray(one.button_states), other.button_states
    )
    return buttons and bool((np.abs(one.qpos - other.qpos) < _AGREES).all())


def _decode(
    recipe: Recipe, observation: Float32, base: PhysicsState
) -> PhysicsState | None:
    """Reads an observation; what it does not say is that of ``base``."""
    seen = observation.astype(np.float64)
    qpos = base.qpos.copy()
    buttons = None if base.button_states is None else base.button_states.copy()
    if recipe == "maze":
        if len(seen) < len(qpos):
            return None
        qpos[:] = seen[: len(qpos)]
        if len(qpos) >= CUBE_QPOS:  # A body that floats freely, not a point.
            qpos[3:7] = _unit(qpos[3:7], base.qpos[3:7])
        return PhysicsState(qpos, base.qvel, buttons)
    if recipe not in ("cube", "scene", "puzzle"):
        return None
    qpos[:_JOINTS] = seen[:_JOINTS]
    cubes, pushed = 0, 0
    if recipe == "cube":
        cubes = (len(seen) - _ROBOT) // _CUBE
    elif recipe == "scene":
        cubes, pushed = 1, find_environment("scene-v0").button_count
    else:
        pushed = (len(seen) - _ROBOT) // _BUTTON
    place, at = _ROBOT, ARM_QPOS
    for _ in range(cubes):
        qpos[at : at + 3] = _CUBE_ORIGIN + seen[place : place + 3] / _CUBE_FACTOR
        stored = base.qpos[at + 3 : at + 7]
        qpos[at + 3 : at + 7] = _unit(seen[place + 3 : place + 7], stored)
        place, at = place + _CUBE, at + CUBE_QPOS
    for button in range(pushed):
        if buttons is not None:  # One of two states, as two indicators.
            buttons[button] = seen[place : place + 2].argmax()
        qpos[at] = seen[place + 2] / _BUTTON_FACTOR
        place, at = place + _BUTTON, at + 1
    if recipe == "scene":
        qpos[at] = seen[place] / _DRAWER_FACTOR
        qpos[at + 1] = seen[place + 2] / _WINDOW_FACTOR
    return PhysicsState(qpos, base.qvel, buttons)


def _unit(quaternion: Float64, otherwise: Float64) -> Float64:
    """The rotation that a predicted quaternion is near to; another if it is none."""
    length = float(np.linalg.norm(quaternion))
    return quaternion / length if length > 0.1 else otherwise
