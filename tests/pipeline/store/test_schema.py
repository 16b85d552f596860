import numpy as np
import pytest

from pipeline.store import schema
from pipeline.store.errors import BadEpisodeError, DataFormatError


def episode():
    return {
        "observations": np.ones((3, 2), np.float32),
        "actions": np.zeros((3, 1), np.int32),
    }


def test_fields_are_described_from_a_sample():
    rows = {**episode(), "images": np.zeros((0, 4, 4, 3), np.uint8)}
    fields = schema.input_fields(rows)
    assert fields["actions"].dtype == "int32"
    assert fields["images"].shape == (4, 4, 3)
    assert "in [-1, 1]" in fields["actions"].unit


@pytest.mark.parametrize("missing", ["observations", "actions"])
def test_observations_and_actions_are_needed(missing):
    rows = episode()
    del rows[missing]
    with pytest.raises(DataFormatError, match=missing):
        schema.input_fields(rows)


def test_every_discount_has_a_field_of_its_own():
    fields = schema.task_fields([0.9, 0.995])
    assert list(fields) == ["rewards", "masks", "returns/0.9", "returns/0.995"]
    assert {field.per for field in fields.values()} == {"row_and_task"}


def test_a_good_episode_passes_even_where_its_sum_overflows():
    rows = {**episode(), "qpos": np.full((3, 1), 1e308)}
    schema.check_episode(rows, where="x")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(value):
    rows = episode()
    rows["observations"][2, 1] = value
    with pytest.raises(
        BadEpisodeError, match=r"f\.npz, episode 4, row 2: obs.*\[1\]"
    ) as e:
        schema.check_episode(rows, where="f.npz, episode 4")
    assert e.value.reason == "nonfinite"
    assert "--on-bad-episode skip" in str(e.value)


def test_infinities_that_cancel_are_found():
    rows = episode()
    rows["observations"][:2, 0] = [np.inf, -np.inf]
    with pytest.raises(BadEpisodeError, match="row 0"):
        schema.check_episode(rows, where="x")


def test_fields_of_unlike_length_are_refused():
    rows = {**episode(), "actions": np.zeros((4, 1), np.int32)}
    with pytest.raises(BadEpisodeError, match="differ in length") as caught:
        schema.check_episode(rows, where="x")
    assert caught.value.reason == "length_mismatch"
