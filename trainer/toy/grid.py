"""The grid: cells, rewards, two recorded paths, and rollouts. No agent is known here.

```
y
3    .    p    p   +1        start (0, 0), goal (3, 3); a move goes right or up.
2    .   -2    .    s        Rewards are those of the cell reached; letters are 0.
1    s    b   +2    s        p: only the penalised path comes here, s: only the
0    .   +2    .    .        safe one, b: both.
     0    1    2    3   x
```

The penalised path takes the +2 at (1, 0) and then the -2; the safe path takes the +2
at (2, 1) and never sees the other. They meet at (1, 1), and the best path is spliced
there: the first's two moves, then the second's four. The window of three recorded
steps from the start through (1, 0) holds the -2 as well, so whatever backs up three
steps at once turns away from the best first move.

After figure 1 of *Horizon Adaptive Offline Policy Learning via Value Stitching*,
section 3: a grid of ours with the same properties.
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
# Chooses the next moves, one or a chunk of them, at a cell.
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

# Rows recorded at the goal after it was reached. Windows from the last moves end
# there, and its own value, 0, is learned from there.
GOAL_ROWS = 3

# A move as an action: the corners of [-1, 1]^2 where one component is high.
_ACTIONS: npt.NDArray[np.float32] = np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32)


def state_index(cell: Cell) -> int:
    """Number of a cell, in [0, 16)."""
    x, y = cell
    return y * SIZE + x


def step(cell: Cell, move: int) -> tuple[Cell, float]:
    """Makes one move.

    Args:
        cell: Where from.
        move: ``RIGHT`` or ``UP``.

    Returns:
        The cell reached and its reward. A move out of the grid stays, at reward 0;
        so does every move at the goal.
    """
    x, y = cell[0] + DIRECTIONS[move][0], cell[1] + DIRECTIONS[move][1]
    if cell == GOAL or x >= SIZE or y >= SIZE:
        return cell, 0.0
    return (x, y), REWARDS.get((x, y), 0.0)


def observe(cells: Sequence[Cell]) -> npt.NDArray[np.float32]:
    """What an agent sees: centred coordinates, one unit a cell.

    Args:
        cells: C cells.

    Returns:
        ``f32[C, 2]`` in [-1.5, 1.5].
    """
    return np.asarray(cells, np.float32).reshape(-1, 2) - np.float32((SIZE - 1) / 2)


def encode_moves(moves: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Moves as actions: ``i64[...]`` to ``f32[..., 2]`` in [-1, 1]."""
    return _ACTIONS[np.asarray(moves)]


def decode_actions(actions: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Actions as the nearest moves: ``f32[..., 2]`` to ``i64[...]``."""
    return np.asarray(np.asarray(actions).argmax(axis=-1), np.int64)


def recorded(discount: float) -> FiniteData:
    """The two recorded episodes, for exact solvers.

    Rewards belong to the row their step starts from; rows at the goal have reward 0
    and mask 0, and there the last move is repeated.

    Args:
        discount: In (0, 1).

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


def table(discount: float, *, recordings: int = 1, noise: float = 0.0) -> RowTable:
    """The recorded paths, as agents train on them.

    Args:
        discount: In (0, 1).
        recordings: Times each path was recorded, always the same.
        noise: Standard deviation of the position that was observed, in cells.

    Returns:
        Rows of all episodes.
    """
    data = recorded(discount)
    cells = [(int(s) % SIZE, int(s) // SIZE) for s in data.states]
    return recording.table(
        data,
        observe(cells),
        encode_moves(data.moves),
        recordings=recordings,
        noise=noise,
        fingerprint=f"grid-{SIZE}x{SIZE}/{discount}/{recordings}/{noise}",
    )


def rollout(policy: Policy) -> Path:
    """Follows a policy from the start for as many moves as the goal is away.

    Args:
        policy: All moves it returns are made before it is asked again.

    Returns:
        Cells from the start on, up to the goal if that is reached; moves out of the
        grid repeat a cell.
    """
    path = [START]
    budget = sum(GOAL) - sum(START)
    while len(path) <= budget and path[-1] != GOAL:
        for move in policy(path[-1]):
            if len(path) <= budget and path[-1] != GOAL:
                path.append(step(path[-1], int(move))[0])
    return tuple(path)


def path_return(path: Path, discount: float) -> float:
    """Discounted sum of the rewards of the cells reached.

    Args:
        path: Cells from the start on.
        discount: In (0, 1].

    Returns:
        The sum.
    """
    return sum(
        discount**t * (REWARDS.get(cell, 0.0) if cell != path[t] else 0.0)
        for t, cell in enumerate(path[1:])
    )


def _move(first: Cell, second: Cell) -> int:
    """The move that leads from one cell to the next."""
    return DIRECTIONS.index((second[0] - first[0], second[1] - first[1]))
