"""From a predicted observation to a configuration that can be drawn.

An observation of a maze holds the whole physics state. An observation of a robot arm
holds the joints of the arm and the objects, but not the linkage of the gripper. For
what an observation lacks, the stored row with the nearest observation stands in.

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
from trainer.subgoals.traces import select_varying

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# OGBench's observations of its arm domains: six joints first, 19 numbers of the robot,
# then 9 of each cube, 4 of each button, and last drawer and window, in the order of
# qpos. Lengths are in metres, times these factors.
_JOINTS, _ROBOT, _CUBE, _BUTTON = 6, 19, 9, 4
_CUBE_ORIGIN, _CUBE_FACTOR = np.array([0.425, 0.0, 0.0]), 10.0
_BUTTON_FACTOR, _DRAWER_FACTOR, _WINDOW_FACTOR = 120.0, 18.0, 15.0

# Metres and radians. A decoding that gives a stored row's own qpos is the right one;
# observations are stored in single precision.
_TOLERANCE = 1e-3
# Rows of a read: a megabyte or two of observations.
_CHUNK_ROWS = 1 << 14
# A quaternion shorter than this has no direction that a prediction could have meant.
_SHORTEST_QUATERNION = 0.1


@dataclass(frozen=True)
class StoredRow:
    """One row of a store.

    Attributes:
        part: Index of its part.
        row: Index of the row within the part.
        distance: Distance of its observation from the one that was searched for, in the
            unit of ``Comparison.relative_errors``.
        observation: ``f32[S]``, the stored observation.
        state: The stored physics state.
    """

    part: int
    row: int
    distance: float
    observation: Float32
    state: PhysicsState


@dataclass(frozen=True)
class Configuration:
    """A physics state to draw for a predicted observation.

    Attributes:
        state: Physics state.
        decoded: Whether the state follows the observation as far as that goes; if not,
            the whole state is the stored row's.
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
        store: A store with physics states.
        observations: ``f32[M, S]``, the queries.
        split: Split of the store to search.
        chunk_rows: Number of rows read at a time.

    Returns:
        A row for each query; the first of several that are equally near.

    Raises:
        DataFormatError: If the store holds no physics states.
    """
    fields = store.manifest.fields
    if "qpos" not in fields or "qvel" not in fields:
        raise DataFormatError(
            f"{store.root}: expected the fields qpos and qvel, to draw a sub-goal, "
            f"got {sorted(fields)}; write the store from data that hold them"
        )
    statistics = store.manifest.statistics["observations"]
    varies = select_varying(statistics.std)
    mean, std = (
        np.asarray(moment, np.float64)[varies]
        for moment in (statistics.mean, statistics.std)
    )

    def standardise(rows: npt.NDArray[np.generic]) -> Float32:
        # In double precision until the mean is gone: coordinates of a large maze are
        # far larger than the distances that are compared.
        flat = rows.reshape(len(rows), -1)[:, varies].astype(np.float64)
        return ((flat - mean) / std).astype(np.float32)

    queries = standardise(observations)
    best = np.full(len(queries), np.inf, np.float32)
    nearest = np.zeros((len(queries), 2), np.int64)  # Part and row.
    parts = store.manifest.parts_of(split)
    for number, part in enumerate(parts):
        for first in range(0, part.rows, chunk_rows):
            last = min(first + chunk_rows, part.rows)
            rows = standardise(store.read_rows(part, "observations", first, last))
            # |q - x|^2 without |q|^2, which is the same for all rows.
            squares = np.square(rows).sum(axis=1)[:, None] - 2 * rows @ queries.T
            candidates = squares.argmin(axis=0)
            smallest = np.take_along_axis(squares, candidates[None], axis=0)[0]
            better = smallest < best
            best[better] = smallest[better]
            nearest[better, 0], nearest[better, 1] = number, first + candidates[better]
    result = []
    for query, (number, row) in zip(queries, nearest.tolist(), strict=True):
        part = parts[number]
        observation = store.read_rows(part, "observations", row, row + 1)
        buttons = None
        if "button_states" in fields:
            buttons = store.read_rows(part, "button_states", row, row + 1)[0]
        difference = query.astype(np.float64) - standardise(observation)[0]
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


def make_configurations(
    recipe: Recipe, observations: Float32, rows: Sequence[StoredRow]
) -> list[Configuration]:
    """Makes configurations of predicted observations.

    Args:
        recipe: Recipe of the task, which names the family of its domain.
        observations: ``f32[M, S]``, predicted observations.
        rows: The nearest stored row of each observation.

    Returns:
        A configuration for each observation. An observation is decoded only if the same
        decoding of the stored row's observation gives that row's qpos, which checks the
        layout.
    """
    made = []
    for observation, row in zip(observations, rows, strict=True):
        # Environments of one's own may have the name of a recipe and another layout.
        known = _decode(recipe, row.observation, row.state)
        decoded = known is not None and _agree(known, row.state)
        state = _decode(recipe, observation, row.state) if decoded else None
        made.append(Configuration(state or row.state, decoded, row))
    return made


def _agree(decoded: PhysicsState, stored: PhysicsState) -> bool:
    """Tells whether a decoded state is the stored one, up to rounding."""
    buttons = stored.button_states is None or np.array_equal(
        np.asarray(decoded.button_states), stored.button_states
    )
    return buttons and bool((np.abs(decoded.qpos - stored.qpos) < _TOLERANCE).all())


def _decode(
    recipe: Recipe, observation: Float32, base: PhysicsState
) -> PhysicsState | None:
    """Decodes an observation; what it does not hold is taken from ``base``."""
    seen = observation.astype(np.float64)
    qpos = base.qpos.copy()
    buttons = None if base.button_states is None else base.button_states.copy()
    if recipe == "maze":
        if len(seen) < len(qpos):
            return None
        qpos[:] = seen[: len(qpos)]
        # A body that floats freely, not a point: its rotation follows its place.
        if len(qpos) >= CUBE_QPOS:
            qpos[3:7] = _normalise(qpos[3:7], base.qpos[3:7])
        return PhysicsState(qpos, base.qvel, buttons)
    if recipe not in ("cube", "scene", "puzzle"):
        return None
    qpos[:_JOINTS] = seen[:_JOINTS]
    # Numbers of objects follow from the observation's length, except in scenes, whose
    # objects are of several kinds.
    cubes, button_count = 0, 0
    if recipe == "cube":
        cubes = (len(seen) - _ROBOT) // _CUBE
    elif recipe == "scene":
        cubes, button_count = 1, find_environment("scene-v0").button_count
    else:
        button_count = (len(seen) - _ROBOT) // _BUTTON
    # Positions in the observation and in qpos, which hold objects in the same order.
    place, at = _ROBOT, ARM_QPOS
    for _ in range(cubes):
        qpos[at : at + 3] = _CUBE_ORIGIN + seen[place : place + 3] / _CUBE_FACTOR
        stored = base.qpos[at + 3 : at + 7]
        qpos[at + 3 : at + 7] = _normalise(seen[place + 3 : place + 7], stored)
        place, at = place + _CUBE, at + CUBE_QPOS
    for button in range(button_count):
        if buttons is not None:  # The observation has an indicator for each state.
            buttons[button] = seen[place : place + 2].argmax()
        qpos[at] = seen[place + 2] / _BUTTON_FACTOR
        place, at = place + _BUTTON, at + 1
    if recipe == "scene":
        qpos[at] = seen[place] / _DRAWER_FACTOR
        qpos[at + 1] = seen[place + 2] / _WINDOW_FACTOR
    return PhysicsState(qpos, base.qvel, buttons)


def _normalise(quaternion: Float64, fallback: Float64) -> Float64:
    """Scales a predicted quaternion to length 1; ``fallback`` if it is near zero."""
    length = float(np.linalg.norm(quaternion))
    return quaternion / length if length > _SHORTEST_QUATERNION else fallback
