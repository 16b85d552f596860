"""The grid: cells, rewards, two recorded paths, and rollouts.

This module knows no agent.

```
y
3    .    p    p   +1        start (0, 0), goal (3, 3); a move goes right or up.
2    .   -2    .    s        A number is the reward for reaching the cell; cells with
1    s    b   +2    s        a letter have reward 0. p: only the penalised path visits
0    .   +2    .    .        the cell, s: only the safe path does, b: both do.
     0    1    2    3   x
```

The penalised path collects the +2 at (1, 0) and then the -2; the safe path collects the
+2 at (2, 1) and never reaches (1, 0). Both paths meet at (1, 1), where the best path is
spliced: it is the first two moves of the penalised path, then the last four of the
safe path. The window of three recorded steps from the start through (1, 0) contains the
-2 as well, so an agent that backs up three steps at once turns away from the best first
move.

References:
    Horizon Adaptive Offline Policy Learning via Value Stitching, section 3 and figure
    1: this grid is our own, with the properties of the grid of the figure.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from trainer.data.table import RowTable
from trainer.toy import recording
from trainer.toy.tabular import FiniteData

Cell = tuple[int, int]
Path = tuple[Cell, ...]
# A function that chooses the next move, or the next chunk of moves, at a cell.
Policy = Callable[[Cell], Sequence[int]]

SIZE = 4
START: Cell = (0, 0)
GOAL: Cell = (SIZE - 1, SIZE - 1)
RIGHT, UP = 0, 1
DIRECTIONS: tuple[Cell, Cell] = ((1, 0), (0, 1))

REWARDS: dict[Cell, float] = {(1, 0): 2.0, (1, 2): -2.0, (2, 1): 2.0, GOAL: 1.0}

PENALISED_PATH: Path = ((0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 3), (3, 3))
SAFE_PATH: Path = ((0, 0), (0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (3, 3))
SPLICED_PATH: Path = (*PENALISED_PATH[:3], *SAFE_PATH[3:])
RECORDED_PATHS: tuple[Path, Path] = (PENALISED_PATH, SAFE_PATH)
VISITED: tuple[Cell, ...] = tuple(sorted({*PENALISED_PATH, *SAFE_PATH}))

# Rows that are recorded at the goal. Windows from the last moves need an end of full
# length, and agents learn the goal's own value, 0, from these rows.
GOAL_ROWS = 3

# Agents have continuous actions. A move is a corner of [-1, 1]^2 where one component is
# high, so that the larger component of any action names the nearest move.
_ACTIONS: npt.NDArray[np.float32] = np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32)


def state_index(cell: Cell) -> int:
    """Numbers a cell, in [0, 16)."""
    x, y = cell
    return y * SIZE + x


def step(cell: Cell, move: int) -> tuple[Cell, float]:
    """Makes one move.

    Args:
        cell: Cell that the move starts from.
        move: ``RIGHT`` or ``UP``.

    Returns:
        The cell that is reached, and its reward. A move out of the grid, and every
        move at the goal, stays at the cell, with reward 0.
    """
    x, y = cell[0] + DIRECTIONS[move][0], cell[1] + DIRECTIONS[move][1]
    if cell == GOAL or x >= SIZE or y >= SIZE:
        return cell, 0.0
    return (x, y), REWARDS.get((x, y), 0.0)


def observe(cells: Sequence[Cell]) -> npt.NDArray[np.float32]:
    """Converts cells to observations: centred coordinates, in cells.

    Args:
        cells: The cells, C of them.

    Returns:
        ``f32[C, 2]`` in [-1.5, 1.5].
    """
    return np.asarray(cells, np.float32).reshape(-1, 2) - np.float32((SIZE - 1) / 2)


def encode_moves(moves: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Converts moves ``i64[...]`` to actions ``f32[..., 2]`` in [-1, 1]."""
    return _ACTIONS[np.asarray(moves)]


def decode_actions(actions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Converts actions ``f32[..., 2]`` to the nearest moves ``i64[...]``."""
    return np.asarray(np.asarray(actions).argmax(axis=-1), np.int64)


def make_episodes(discount: float) -> FiniteData:
    """Builds the two recorded episodes, for exact solvers.

    A reward belongs to the row that its step starts from. Rows at the goal have reward
    0 and mask 0, and repeat the last move.

    Args:
        discount: Discount of rewards, in (0, 1).

    Returns:
        Rows of both episodes.
    """
    states, moves, rewards, masks = [], [], [], []
    for path in RECORDED_PATHS:
        path_moves = [_move(a, b) for a, b in pairwise(path)]
        padded = [*path, *[GOAL] * (GOAL_ROWS - 1)]
        path_moves += [path_moves[-1]] * GOAL_ROWS
        for cell, move in zip(padded, path_moves, strict=True):
            states.append(state_index(cell))
            moves.append(move)
            rewards.append(step(cell, move)[1])
            masks.append(float(cell != GOAL))
    return FiniteData(
        states=np.array(states),
        moves=np.array(moves),
        rewards=np.array(rewards),
        masks=np.array(masks),
        lengths=np.full(
            len(RECORDED_PATHS), len(states) // len(RECORDED_PATHS), np.int64
        ),
        state_count=SIZE * SIZE,
        discount=discount,
    )


def make_table(discount: float, *, recordings: int = 1, noise: float = 0.0) -> RowTable:
    """Builds the table of rows that agents train on.

    Args:
        discount: Discount of rewards, in (0, 1).
        recordings: Number of copies of each path.
        noise: Standard deviation of the noise on observed positions, in cells.

    Returns:
        Rows of all episodes.
    """
    data = make_episodes(discount)
    cells = [(int(s) % SIZE, int(s) // SIZE) for s in data.states]
    return recording.make_table(
        data,
        observe(cells),
        encode_moves(data.moves),
        recordings=recordings,
        noise=noise,
        fingerprint=f"grid-{SIZE}x{SIZE}/{discount}/{recordings}/{noise}",
    )


def roll_out(policy: Policy) -> Path:
    """Follows a policy from the start, for at most the moves that the goal needs.

    Args:
        policy: The policy; all moves of a chunk are made before it is called again.

    Returns:
        Cells from the start, up to the goal if the policy reaches it; a move out of the
        grid repeats a cell.
    """
    path = [START]
    # Every path to the goal has the same length, because moves go right or up only.
    budget = sum(GOAL) - sum(START)
    while len(path) <= budget and path[-1] != GOAL:
        for move in policy(path[-1]):
            if len(path) <= budget and path[-1] != GOAL:
                path.append(step(path[-1], int(move))[0])
    return tuple(path)


def compute_return(path: Path, discount: float) -> float:
    """Computes the discounted return of a path.

    Args:
        path: Cells from the start.
        discount: Discount of rewards, in (0, 1].

    Returns:
        The return, from the start.
    """
    # A repeated cell is a move out of the grid, which has no reward.
    return sum(
        discount**t * (REWARDS.get(cell, 0.0) if cell != path[t] else 0.0)
        for t, cell in enumerate(path[1:])
    )


def _move(first: Cell, second: Cell) -> int:
    """Finds the move that leads from a cell to the neighbouring one."""
    return DIRECTIONS.index((second[0] - first[0], second[1] - first[1]))
