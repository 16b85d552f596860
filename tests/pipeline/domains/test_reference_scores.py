import pytest

from pipeline.domains.reference_scores import (
    check_reference_scores,
    find_reference_scores,
)
from pipeline.store.errors import UsageError


def test_scores_are_known_by_the_whole_name():
    assert find_reference_scores("hopper-medium-v2") == (-20.272305, 3234.3)
    assert find_reference_scores("antmaze-large-play-v2") == (0.0, 1.0)
    assert find_reference_scores("door-human-v1") == (-56.512833, 2880.5693087298737)
    # OGBench's mazes are others.
    assert find_reference_scores("antmaze-large-navigate") is None
    assert find_reference_scores("hopper-medium") is None


@pytest.mark.parametrize("scores", [(1, 1), (2, 1), (0, float("inf"))])
def test_scores_that_cannot_be(scores):
    with pytest.raises(UsageError, match="--reference-scores: expected the return"):
        check_reference_scores(*scores)
    assert check_reference_scores(-1, 2) == (-1.0, 2.0)
