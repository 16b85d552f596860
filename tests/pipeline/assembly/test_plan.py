import pickle

import numpy as np
import pytest

from pipeline.store.errors import DataFormatError

LENGTHS = (5, 5, 7, 4, 1, 6)


def test_a_plan_is_small_and_names_no_folder_in_its_digest(make_npz, make_plan):
    plan = make_plan(make_npz((2,) * 10_000), part_rows=10**6)
    (part,) = plan.parts
    assert len(pickle.dumps(part)) < 50_000
    elsewhere = make_plan(make_npz((2,) * 10_000), part_rows=10**6, out="elsewhere")
    assert elsewhere.parts[0].digest() == part.digest()


def test_b3_missing_physics_state_is_found_by_the_plan(make_npz, make_plan):
    path = make_npz(LENGTHS, without=["qpos"])
    with pytest.raises(DataFormatError, match=r"cube-single-play\.npz: .*needs qpos"):
        make_plan(path)


def test_data_of_another_environment_are_found_by_the_plan(make_npz, make_plan):
    path = make_npz(LENGTHS, qpos=np.zeros((28, 35), np.float32))
    with pytest.raises(DataFormatError, match="another environment"):
        make_plan(path)


def test_splits_of_unlike_fields_are_refused(make_npz, make_plan):
    val = make_npz((3,), name="val.npz", observations=np.zeros((3, 7), np.float32))
    with pytest.raises(DataFormatError, match=r"float32\[28\].*float32\[7\]"):
        make_plan(make_npz(LENGTHS), val=val)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discounts": (1.5,)}, "discounts in"),
        ({"max_bad_share": -1.0}, "--max-bad-share: expected a share in"),
        ({"part_rows": 0}, "at least 1 row"),
    ],
)
def test_options_out_of_range_are_refused(make_npz, make_plan, options, message):
    with pytest.raises(ValueError, match=message):
        make_plan(make_npz(LENGTHS), **options)


def test_observations_that_cannot_be_trained_on_are_warned_of(make_npz, make_plan):
    assert make_plan(make_npz(LENGTHS)).warnings == ()
    images = np.zeros((28, 4, 4, 3), np.uint8)
    (warning,) = make_plan(make_npz(LENGTHS, observations=images)).warnings
    assert warning.startswith("observations are uint8[4, 4, 3] a row")
