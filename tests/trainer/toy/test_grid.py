"""The grid: its paths, and the rows they are recorded as."""

from itertools import pairwise

import numpy as np

from trainer.toy import grid

DISCOUNT = 0.99


def test_paths_go_right_or_up_from_start_to_goal_and_meet() -> None:
    for path in (*grid.RECORDED_PATHS, grid.SPLICED_PATH):
        assert path[0] == grid.START
        assert path[-1] == grid.GOAL
        for a, b in pairwise(path):
            assert (b[0] - a[0], b[1] - a[1]) in grid.DIRECTIONS
    shared = set(grid.PENALISED_PATH) & set(grid.SAFE_PATH)
    assert shared == {grid.START, (1, 1), grid.GOAL}


def test_table_rows_are_the_recorded_ones() -> None:
    table = grid.make_table(DISCOUNT, recordings=3, noise=0.1)
    once = grid.make_table(DISCOUNT)
    assert table.rows == 3 * once.rows
    blur = table.observations - np.tile(once.observations, (3, 1))
    assert 0.08 < blur.std() < 0.12
    np.testing.assert_array_equal(table.rewards, np.tile(once.rewards, 3))
    starts = table.episode_starts
    np.testing.assert_allclose(
        table.returns[starts[0]], 2 - 2 * DISCOUNT**2 + DISCOUNT**5
    )
