"""The grid and its exact solutions: what three steps miss and stitching finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.toy.random_episodes import random_data
from trainer.toy import grid
from trainer.toy.tabular import (
    backup,
    fixed_horizon,
    fixed_point,
    one_step,
    stitching,
    windows,
)

DISCOUNT = 0.99


DATA = grid.make_episodes(DISCOUNT)


def value(values: np.ndarray, cell: grid.Cell) -> float:
    return float(values[grid.state_index(cell)])


def greedy(values: np.ndarray, *, steps: int, chunked: bool) -> grid.Path:
    pairs = backup(DATA, values, steps=steps, chunked=chunked)
    return grid.roll_out(lambda cell: pairs.best(grid.state_index(cell)))


def test_neither_recorded_path_is_optimal_and_the_spliced_one_is() -> None:
    # Undiscounted: penalised 2 - 2 + 1 = 1, safe 2 + 1 = 3, spliced 2 + 2 + 1 = 5.
    assert [
        grid.compute_return(path, 1.0)
        for path in (*grid.RECORDED_PATHS, grid.SPLICED_PATH)
    ] == [1, 3, 5]
    optimum = fixed_point(one_step(DATA), DATA.state_count)
    assert value(optimum, grid.START) == pytest.approx(
        grid.compute_return(grid.SPLICED_PATH, DISCOUNT)
    )
    assert greedy(optimum, steps=1, chunked=False) == grid.SPLICED_PATH


@pytest.mark.parametrize("chunked", [False, True])
def test_a_horizon_of_three_takes_the_wrong_first_move(chunked: bool) -> None:
    operator = fixed_horizon(DATA, steps=3, chunked=chunked)
    values = fixed_point(operator, DATA.state_count)
    assert value(values, (1, 0)) < 0
    path = greedy(values, steps=3, chunked=chunked)
    assert path[1] == (0, 1)
    assert path != grid.SPLICED_PATH


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_horizon_that_ends_where_the_paths_meet_finds_the_optimum(
    steps: int, chunked: bool
) -> None:
    # The paths meet after two steps, so no claim may be made of all fixed horizons.
    operator = fixed_horizon(DATA, steps=steps, chunked=chunked)
    values = fixed_point(operator, DATA.state_count)
    assert greedy(values, steps=steps, chunked=chunked) == grid.SPLICED_PATH


@pytest.mark.parametrize("max_horizon", [1, 2, 3, 6])
def test_stitching_finds_the_optimum_for_every_largest_horizon(
    max_horizon: int,
) -> None:
    stitched = fixed_point(stitching(DATA, max_horizon=max_horizon), DATA.state_count)
    optimum = fixed_point(one_step(DATA), DATA.state_count)
    np.testing.assert_allclose(stitched, optimum, atol=1e-9)
    assert value(stitched, (1, 0)) > 2.9


def test_without_windows_of_one_step_stitching_misses_it_too() -> None:
    # A splice right after a state needs a window that ends there.
    operator = stitching(DATA, max_horizon=6, min_horizon=2)
    values = fixed_point(operator, DATA.state_count)
    assert value(values, (1, 0)) < 0


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10_000),
    discount=st.floats(0.5, 0.99),
    max_horizon=st.integers(1, 5),
)
def test_stitching_contracts_by_at_most_the_discount(
    seed: int, discount: float, max_horizon: int
) -> None:
    rng = np.random.default_rng(seed)
    data = random_data(rng, states=6, moves=3, episodes=4, longest=8, discount=discount)
    operator = stitching(data, max_horizon=max_horizon)
    one, other = rng.normal(scale=10, size=(2, 6))
    before = np.abs(one - other).max()
    after = np.abs(operator(one) - operator(other)).max()
    assert before > 0
    assert after <= discount * before + 1e-9


def test_contraction_is_not_trivial() -> None:
    rng = np.random.default_rng(0)
    data = random_data(rng, states=6, moves=3, episodes=4, longest=8, discount=0.9)
    operator = stitching(data, max_horizon=1)
    zeros, ones = np.zeros(6), np.ones(6)
    # Values one apart everywhere end exactly one discount apart where something bounds.
    assert np.abs(operator(zeros) - operator(ones)).max() == pytest.approx(0.9)


def test_windows_equal_a_loop() -> None:
    rng = np.random.default_rng(3)
    data = random_data(rng, states=5, moves=2, episodes=3, longest=7, discount=0.9)
    found = windows(data, 3)
    ends = np.cumsum(data.lengths)
    expected = [
        start
        for first, end in zip(ends - data.lengths, ends, strict=True)
        for start in range(first, end - 3)
    ]
    assert found.starts.tolist() == expected
    assert expected
    for w, start in enumerate(expected):
        total, weight = 0.0, 1.0
        for row in range(start, start + 3):
            total += weight * data.rewards[row]
            weight *= 0.9 * data.masks[row]
        assert found.gained[w] == pytest.approx(total)
        assert found.weights[w] == pytest.approx(weight)
        assert found.ends[w] == data.states[start + 3]
