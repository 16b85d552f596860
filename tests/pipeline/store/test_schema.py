import numpy as np
import pytest

from pipeline.store import schema
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import BadEpisodeError, DataFormatError


def rows():
    return {
        "observations": np.ones((3, 2), np.float32),
        "actions": np.zeros((3, 1), np.float32),
    }


def test_fields_are_described_from_a_sample():
    images = np.zeros((0, 4, 4, 3), np.uint8)
    fields = schema.input_fields({**rows(), "images": images}, where="x")
    assert fields["actions"].dtype == "float32"
    assert fields["images"].shape == (4, 4, 3)
    assert "in [-1, 1]" in fields["actions"].unit


@pytest.mark.parametrize("missing", ["observations", "actions"])
def test_observations_and_actions_are_needed(missing):
    given = rows()
    del given[missing]
    with pytest.raises(DataFormatError, match=f"x: .*{missing}"):
        schema.input_fields(given, where="x")


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("actions", np.zeros(3, np.float32), r"continuous actions \[rows, A\]"),
        ("actions", np.zeros((3, 1), np.int32), "got int32"),
        ("actions", np.zeros((3, 1), np.bool_), "got bool"),
        ("actions", np.zeros((3, 2, 2)), r"got float64\['rows', 2, 2\]"),
        ("observations", np.zeros(3), r"observations \[rows, S\]"),
        ("rewards", np.zeros((3, 2, 1)), "rewards .*one number a row for each task"),
        ("masks", np.zeros((3, 2, 1)), "masks .*one number a row for each task"),
    ],
)
def test_a_field_of_other_dimensions_or_kind_is_refused(field, values, message):
    schema.input_fields(rows(), where="x")
    with pytest.raises(DataFormatError, match=f"^x: .*{message}"):
        schema.input_fields({**rows(), field: values}, where="x")


def test_every_discount_has_a_field_of_its_own():
    fields = schema.task_fields([0.9, 0.995])
    assert list(fields) == ["rewards", "masks", "returns/0.9", "returns/0.995"]
    assert {field.per for field in fields.values()} == {"row_and_task"}


def test_good_rows_pass_even_where_their_sum_overflows():
    largest = np.full((3, 1), np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        assert np.isinf(largest.astype(np.float32).sum())
    for dtype in (np.float32, np.float64):
        given = {**rows(), "qpos": largest.astype(dtype), "masks": np.array([0, 1, 1])}
        schema.check_rows(given, where="x")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(value):
    bad = rows()
    bad["observations"][2, 1] = value
    with pytest.raises(
        BadEpisodeError, match=r"f\.npz, episode 4, row 2: obs.*\[1\]"
    ) as e:
        schema.check_rows(bad, where="f.npz, episode 4")
    assert e.value.reason == "nonfinite"
    assert "--on-bad-episode skip" in str(e.value)


def test_infinities_that_cancel_are_found():
    bad = rows()
    bad["observations"][:2, 0] = [np.inf, -np.inf]
    with pytest.raises(BadEpisodeError, match="row 0"):
        schema.check_rows(bad, where="x")


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "qpos"])
def test_what_does_not_fit_float32_is_not_called_infinite(field):
    """Observations, actions and rewards are cast; what is not is trained on so too."""
    given = {**rows(), "rewards": np.zeros(3), "qpos": np.zeros((3, 1))}
    given[field] = given[field].astype(np.float64)
    given[field][1:] = [[1e39], [-1e39]] if given[field].ndim == 2 else [1e39, -1e39]
    with pytest.raises(BadEpisodeError, match=rf"x, row 1: {field}.* is 1e\+39,") as e:
        schema.check_rows(schema.cast_rows(given), where="x", given=given)
    assert "does not fit float32" in str(e.value)
    assert e.value.reason == "too_large"


@pytest.mark.parametrize("value", [0.5, -1, 2])
def test_a_mask_is_0_or_1(value):
    given = {**rows(), "masks": np.array([0.0, 1.0, value])}
    with pytest.raises(BadEpisodeError, match="row 2: masks is") as e:
        schema.check_rows(schema.cast_rows(given), where="x", given=given)
    assert e.value.reason == "no_mask"


def test_actions_are_within_their_bounds_up_to_rounding():
    given = {**rows(), "actions": np.array([[1.0 + 5e-7], [-1.0 - 5e-7], [0.0]])}
    schema.check_rows(schema.cast_rows(given), where="x", given=given)
    given["actions"][2] = -1.001
    with pytest.raises(BadEpisodeError, match=r"row 2: actions\[0\] is -1\.001,") as e:
        schema.check_rows(schema.cast_rows(given), where="x", given=given)
    assert e.value.reason == schema.OUTSIDE


def test_scaled_actions_are_within_the_bounds_of_their_scale():
    scale = ActionScale((-2.0,), (4.0,))
    given = {**rows(), "actions": np.array([[-2.0], [1.0], [4.0]])}
    stored = schema.cast_rows(given, scale)
    assert stored["actions"].tolist() == [[-1.0], [0.0], [1.0]]
    schema.check_rows(stored, where="x", given=given)
    given["actions"][1] = 4.1
    with pytest.raises(BadEpisodeError, match=r"row 1: actions\[0\] is 4\.1,"):
        schema.check_rows(schema.cast_rows(given, scale), where="x", given=given)


def test_the_action_of_a_last_row_may_be_outside():
    given = {**rows(), "actions": np.array([[0.5], [-7.0], [9.0]], np.float32)}
    schema.check_rows(
        {**given, "actions": given["actions"][[0, 1, 1]]},
        where="x",
        lengths=np.array([2, 1]),
    )
    with pytest.raises(BadEpisodeError, match=r"row 1: actions\[0\] is -7,"):
        schema.check_rows(given, where="x", lengths=np.array([3]))
    given["actions"][1:] = [[0.5], [np.nan]]
    with pytest.raises(BadEpisodeError, match=r"row 2: actions\[0\] is nan,"):
        schema.check_rows(given, where="x", lengths=np.array([3]))


def test_fields_of_unlike_length_are_refused():
    given = {**rows(), "actions": np.zeros((4, 1), np.float32)}
    with pytest.raises(
        BadEpisodeError, match="expected fields of one length"
    ) as caught:
        schema.check_rows(given, where="x")
    assert caught.value.reason == "length_mismatch"
