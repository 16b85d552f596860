import tracemalloc

import numpy as np
import pytest

from pipeline.sources import boundaries, transitions
from pipeline.sources.episodes import EpisodeRange, cut
from pipeline.store.errors import DataFormatError

# Episodes of 3, 2, 1 and 4 transitions: ended, cut off, ended, cut off.
TERMINALS = np.array([0, 0, 1, 0, 0, 1, 0, 0, 0, 0], np.bool_)
TIMEOUTS = np.array([0, 0, 0, 0, 1, 0, 0, 0, 0, 1], np.bool_)


def given(n=10):
    return {
        "observations": np.arange(n, dtype=np.float32)[:, None],
        "next_observations": np.arange(n, dtype=np.float32)[:, None] + 0.5,
        "actions": np.ones((n, 2), np.float32),
        "rewards": np.arange(1, n + 1, dtype=np.float64),
        "terminals": TERMINALS,
        "timeouts": TIMEOUTS,
    }


def rows_of(table, members, pieces):
    blocks = []
    for episodes in pieces:
        first, count = table.file_rows(episodes)
        part = {name: values[first : first + count] for name, values in members.items()}
        blocks.append(transitions.to_rows(table, episodes, part))
    return {n: np.concatenate([b[n] for b in blocks]) for n in blocks[0]}


def find(**options):
    return transitions.find_episodes(TERMINALS, TIMEOUTS, where="x", **options)


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_next_observations_complete_every_episode(rows):
    table = find(has_next=True)
    assert table.lengths == (4, 3, 2, 5)
    found = rows_of(table, given(), cut(EpisodeRange(0, 0, table.lengths), rows))
    # Each episode's own states, then the state its last transition led to.
    states = [0, 1, 2, 2.5, 3, 4, 4.5, 5, 5.5, 6, 7, 8, 9, 9.5]
    assert found["observations"][:, 0].tolist() == states
    assert found["rewards"].tolist() == [1, 2, 3, 0, 4, 5, 0, 6, 0, 7, 8, 9, 10, 0]
    masks = [1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1]  # no time limit is a 0
    assert found["masks"].astype(int).tolist() == masks
    assert (found["actions"][[3, 6, 8, 13]] == 0).all()
    assert set(found) == {"observations", "actions", "rewards", "masks"}


@pytest.mark.parametrize("rows", [1, 4, 100])
def test_without_them_a_cut_off_episode_loses_its_last_transition(rows):
    members = given()
    del members["next_observations"]
    table = find(has_next=False)
    assert table.lengths == (4, 2, 2, 4)
    found = rows_of(table, members, cut(EpisodeRange(0, 0, table.lengths), rows))
    states = [0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    assert found["observations"][:, 0].tolist() == states
    assert found["masks"].astype(int).tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1]


def test_a_last_episode_without_end_is_cut_off_with_a_warning():
    table = transitions.find_episodes(
        TERMINALS[:9], TIMEOUTS[:9], has_next=True, where="x.hdf5"
    )
    assert table.lengths == (4, 3, 2, 4)
    assert "rows 6 to 8, does not end" in table.warnings[0]


@pytest.mark.parametrize(
    ("terminals", "timeouts", "message"),
    [
        (np.array([0, 2]), None, "row 1: expected 0 or 1"),
        (np.zeros(0), None, "got no rows"),
        (np.zeros(3), np.zeros(2), "expected one value of timeouts per row, 3, got 2"),
    ],
)
def test_ends_that_say_nothing_are_refused(terminals, timeouts, message):
    with pytest.raises(DataFormatError, match=message):
        transitions.find_episodes(terminals, timeouts, has_next=False, where="x")


def walk(lengths, seed=0, jump=20.0):
    """A smooth walk in every episode, and a jump between them."""
    random = np.random.default_rng(seed)
    steps = random.normal(scale=0.1, size=(sum(lengths), 3))
    steps[np.cumsum(lengths)[:-1], 0] += jump
    return np.cumsum(steps, axis=0)


def suspects(states, ends, following=None):
    timeouts = np.zeros(len(states))
    timeouts[ends] = 1
    table = transitions.find_episodes(
        np.zeros(len(states)), timeouts, has_next=following is not None, where="x"
    )

    rows_read = []

    def read(slices):
        end = 0
        for first, count in slices:
            assert first >= end  # A stream does not go back.
            end = first + count
            rows_read.extend(range(first, end))
            yield states[first:end], None if following is None else following[first:end]

    found = boundaries.find_suspects(
        read, table, row_shape=states.shape[1:], where="x.hdf5"
    )
    # Once, and again what may be a jump.
    assert rows_read[: len(states)] == list(range(len(states)))
    if not any("steps" in warning for warning in found):
        assert len(rows_read) == len(states)
    return found


LENGTHS = (300, 200, 400, 100)
ENDS = np.cumsum(LENGTHS) - 1


def test_b2_marked_boundaries_are_no_suspects():
    assert suspects(walk(LENGTHS), ENDS) == []


@pytest.mark.parametrize("rows", [1, 70, 499, 500, 501, 999, 5000])
def test_b2_a_jump_inside_an_episode_is_listed(monkeypatch, rows):
    monkeypatch.setattr(boundaries, "_BLOCK_ROWS", rows)
    (warning,) = suspects(walk(LENGTHS), ENDS[[0, 2, 3]])
    assert "after rows 499" in warning
    assert "boundary may be missing" in warning


def test_b2_timeouts_shifted_by_one_are_named_as_such():
    shifted = np.append(ENDS[:-1] + 1, ENDS[-1])
    (warning,) = suspects(walk(LENGTHS), shifted)
    assert "after rows 299, 499, 899" in warning
    assert "every one lies -1 rows from an end that is marked" in warning


def test_b2_next_observations_that_are_not_next_are_listed():
    states = walk(LENGTHS, jump=0.0)  # no jump to see
    following = np.concatenate([states[1:], states[-1:]])
    following[ENDS] += 5.0
    assert suspects(states, ENDS, following) == []
    (warning,) = suspects(states, ENDS[[0, 2, 3]], following)
    assert "1 next observations are not the observation of the next row" in warning
    assert "after rows 499" in warning


def make_table(rows):
    return transitions.find_episodes(
        np.arange(rows) == rows - 1, None, has_next=True, where="x"
    )


def test_wide_rows_are_searched_in_bounded_memory(monkeypatch):
    limit, width, n = 1 << 20, 4096, 2000
    monkeypatch.setattr(boundaries, "_BLOCK_BYTES", limit)
    monkeypatch.setattr(boundaries, "_SAMPLE_BYTES", limit)
    slices = []

    def read(asked):
        for first, count in asked:
            slices.append(count)
            # All components move by 1 a step, and by 101 after row 1510.
            steps = np.arange(first, first + count, dtype=np.float32)
            states = np.repeat((steps + 100 * (steps > 1510))[:, None], width, axis=1)
            yield states, states + 1

    tracemalloc.start()
    found = boundaries.find_suspects(
        read, make_table(n), row_shape=(width,), where="x.npz"
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # 1 MiB holds 32 rows of 4096 float64, and all 2000 rows would take 62 MiB.
    assert max(slices) == 33
    assert peak < 12 * limit < 8 * width * n / 5, peak
    assert all("after rows 1510" in warning for warning in found)
    assert len(found) == 2


@pytest.mark.parametrize("width", [1, 29, 128])
def test_usual_widths_are_sampled_in_full(width):
    sampled = boundaries._sample(1_000_000, 8 * width)
    assert sampled.sum() == boundaries._SAMPLES * (boundaries._SAMPLE_ROWS - 1)


def test_images_are_not_searched():
    def read(asked):
        raise AssertionError(asked)

    def find(*shape):
        return boundaries.find_suspects(
            read, make_table(9), row_shape=shape, where="x.npz"
        )

    assert find(64, 64, 3) == []
    with pytest.raises(AssertionError, match="9"):
        find(64, 3)
