import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sources.episodes import EpisodeRange, cut, episode_lengths, single_rows
from pipeline.store.errors import DataFormatError

lengths_strategy = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(lengths_strategy, st.sampled_from([np.bool_, np.float32, np.uint8]))
def test_lengths_are_read_off_the_terminals(lengths, dtype):
    terminals = np.zeros(sum(lengths), dtype)
    terminals[np.cumsum(lengths) - 1] = 1
    assert episode_lengths(terminals, where="x").tolist() == lengths


def test_f3_terminals_in_a_row_are_episodes_without_transition():
    lengths = episode_lengths(np.array([0, 0, 1, 1, 1, 0, 1]), where="x").tolist()
    assert lengths == [3, 1, 1, 2]
    assert single_rows(lengths) == 2


@pytest.mark.parametrize(
    ("terminals", "message"),
    [
        ([0, 1, 0, 0], "rows 2 to 3 are all 0"),
        ([0, 0], "rows 0 to 1 are all 0"),
        ([], "expected one value per row"),
        ([[0], [1]], "expected one value per row"),
        ([0, 2, 1], "row 1: expected 0 or 1, got 2"),
        ([0.0, np.nan, 1.0], "row 1: expected 0 or 1, got nan"),
    ],
)
def test_terminals_that_make_no_episodes_are_refused(terminals, message):
    with pytest.raises(DataFormatError, match=message) as caught:
        episode_lengths(np.array(terminals), where="f.npz: terminals")
    assert "f.npz: terminals" in str(caught.value)


@given(lengths_strategy, st.integers(1, 40), st.integers(0, 5), st.integers(0, 9))
def test_pieces_cover_the_range_once_in_order(lengths, rows, episode, row):
    whole = EpisodeRange(episode, row, tuple(lengths))
    pieces = cut(whole, rows)
    assert sum((piece.lengths for piece in pieces), ()) == whole.lengths
    for piece in pieces:
        assert piece.episodes >= 1
        assert (piece.first_episode, piece.first_row) == (episode, row)
        episode, row = episode + piece.episodes, row + piece.rows


def test_pieces_are_about_equal_and_leave_no_stump():
    pieces = cut(EpisodeRange(0, 0, (1001,) * 2400), 1_000_000)
    assert [piece.episodes for piece in pieces] == [1200, 1200]
    assert [p.episodes for p in cut(EpisodeRange(0, 0, (1001,) * 1000), 10**6)] == [
        1000
    ]


def test_an_episode_longer_than_a_piece_stays_whole():
    pieces = cut(EpisodeRange(0, 0, (2, 50, 2)), 10)
    assert [piece.lengths for piece in pieces] == [(2,), (50,), (2,)]


def test_pieces_need_rows():
    with pytest.raises(ValueError, match="at least 1 row"):
        cut(EpisodeRange(0, 0, (3,)), 0)
