"""Fixed windows under both rules, against loops written from their definitions."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.store.errors import DataFormatError
from tests.stores import make_table, numbers_of
from trainer.data.nstep_windows import NStepIndex, NStepSampler
from trainer.data.table import RowTable


def draw(table: RowTable, sampler: NStepSampler, size: int = 2000) -> NStepIndex:
    return sampler.draw(table, numbers_of(table, sampler, size))


def only_row(index: NStepIndex, row: int) -> NStepIndex:
    """The window that starts at a row."""
    (found,) = np.flatnonzero(index.rows == row)[:1]
    return NStepIndex(*(values[found] for values in index))


def solved_table() -> RowTable:
    """One episode of five transitions, solved at its third state."""
    table = make_table([6])
    return dataclasses.replace(
        table,
        rewards=np.array([-1, -1, 0, -1, -1, 7], np.float32),
        masks=np.array([1, 1, 0, 1, 1, 1], np.float32),
    )


def test_success_inside_a_window_ends_it() -> None:
    # -1 + 0.99 * -1 + 0.99^2 * 0 = -1.99; three rewards, nothing after.
    window = only_row(draw(solved_table(), NStepSampler(4, 0.99)), 0)
    assert window.returns_n == pytest.approx(-1.99, abs=1e-6)
    assert window.steps == 3
    assert window.bootstraps == 0
    assert window.valid == 1


def test_published_rule_goes_on_adding_after_success() -> None:
    # ... + 0.99^3 * -1 = -1.99 - 0.970299 = -2.960299; it bootstraps no more either.
    window = only_row(draw(solved_table(), NStepSampler(4, 0.99, "published")), 0)
    assert window.returns_n == pytest.approx(-2.960299, abs=1e-6)
    assert window.bootstraps == 0
    assert window.valid == 1


def test_a_time_limit_shortens_a_window_and_still_bootstraps() -> None:
    # Row 3 of rows 0..5: two rewards are left, -1 + 0.99 * -1, then s_5 at 0.99^2.
    table = dataclasses.replace(solved_table(), masks=np.ones(6, np.float32))
    window = only_row(draw(table, NStepSampler(5, 0.99)), 3)
    assert window.returns_n == pytest.approx(-1.99, abs=1e-6)
    assert window.steps == 2
    assert window.bootstraps == pytest.approx(0.9801)
    assert window.rows_n == 5
    assert window.valid_actions.tolist() == [1, 1, 0, 0, 0]
    assert window.rows_actions.tolist() == [3, 4, 4, 4, 4]
    dropped = draw(table, NStepSampler(5, 0.99, "published"))
    assert set(dropped.rows) == {0}  # 5 transitions: the only whole window.


@settings(max_examples=30)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5).filter(
        lambda lengths: max(lengths) > 4
    ),
    n=st.integers(1, 4),
    rule=st.sampled_from(["exact", "published"]),
)
def test_windows_equal_a_loop(lengths: list[int], n: int, rule: str) -> None:
    table = make_table(lengths)
    sampler = NStepSampler(n, 0.9, rule)  # type: ignore[arg-type]
    index = draw(table, sampler, 50)
    ends = np.repeat(np.cumsum(lengths) - 1, lengths)
    for b in range(50):
        t, end = int(index.rows[b]), int(ends[index.rows[b]])
        total, factor, mask, steps = 0.0, 1.0, 1.0, 0
        for row in range(t, min(t + n, end)):
            if rule == "published" or mask:
                total += factor * table.rewards[row]
                steps += 1
            mask = min(mask, table.masks[row])
            factor *= 0.9
        assert t < end
        assert index.returns_n[b] == pytest.approx(total, abs=1e-5)
        assert index.bootstraps[b] == pytest.approx(mask * factor, abs=1e-6)
        assert index.steps[b] == steps
        assert index.rows_n[b] == min(t + n, end)
        assert index.valid[b] == (rule == "exact" or t + n <= end)


def test_one_step_rows_are_the_same_under_both_rules() -> None:
    table = make_table([8, 5])
    exact, published = (
        draw(table, NStepSampler(1, 0.9, rule)) for rule in ("exact", "published")
    )
    for one, other in zip(exact, published, strict=True):
        # Only the streams differ: the rule is part of their key.
        assert one.shape == other.shape
    assert (exact.valid == 1).all()
    assert (published.valid == 1).all()
    np.testing.assert_array_equal(exact.returns_n, table.rewards[exact.rows])
    np.testing.assert_allclose(
        exact.bootstraps, 0.9 * table.masks[exact.rows], rtol=1e-6
    )
    assert set(exact.rows) == set(range(13)) - {7, 12}


def test_published_starts_are_uniform_over_flat_transitions() -> None:
    # Two episodes of 4 transitions: 8 in all, the last 2 start no window of 3.
    table = make_table([5, 5])
    index = draw(table, NStepSampler(3, 0.9, "published"), 40_000)
    counts = np.bincount(index.rows, minlength=10)
    assert set(np.flatnonzero(counts)) == {0, 1, 2, 3, 5, 6}
    assert counts[counts > 0].min() > 40_000 / 6 * 0.95
    # Sum over episodes of T - n + 1 = 2 each are whole.
    assert set(index.rows[index.valid == 1]) == {0, 1, 5, 6}


def test_published_chunks_go_on_with_the_next_recorded_actions() -> None:
    # Rows 0..2, 3 alone, 4..8: transitions are rows 0, 1, 4, 5, 6, 7.
    table = make_table([3, 1, 5])
    index = draw(table, NStepSampler(4, 0.9, "published"), 200)
    for start, rows, acting in (
        (0, [0, 1, 4, 5], [1, 1, 0, 0]),
        (1, [1, 4, 5, 6], [1, 0, 0, 0]),
        (4, [4, 5, 6, 7], [1, 1, 1, 1]),
    ):
        window = only_row(index, start)
        assert window.rows_actions.tolist() == rows
        assert window.valid_actions.tolist() == acting
    assert set(index.rows) == {0, 1, 4}


def test_gather_looks_up_states_and_chunks() -> None:
    table = make_table([20, 30])
    sampler = NStepSampler(3, 0.9)
    index = draw(table, sampler, 16)
    batch = sampler.gather(table.observations, table.actions, index)
    assert batch.chunks.shape == (16, 3, 3)
    for b in range(16):
        np.testing.assert_array_equal(
            batch.chunks[b], table.actions[index.rows_actions[b]]
        )
        np.testing.assert_array_equal(
            batch.states_n[b], table.observations[index.rows_n[b]]
        )


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        NStepSampler(0, 0.9)
    with pytest.raises(DataFormatError, match=r"at least 2 rows.*longest of 2 .*has 1"):
        NStepSampler(5, 0.9).check(np.array([1, 1]), discount=0.9)
    with pytest.raises(DataFormatError, match="at least 6 rows"):
        NStepSampler(5, 0.9, "published").check(np.array([4]), discount=0.9)
