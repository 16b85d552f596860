"""The baselines' networks on the grid: who takes the wrong first move, and who not."""

import pytest

from tests.optimised import call_optimised
from trainer.toy import grid
from trainer.toy.baselines import train_baseline

# Of the safe path: +2 for the third move, +1 for the sixth.
SAFE_RETURN = 2 * 0.99**2 + 0.99**5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fql-n", "qc"])
def test_a_horizon_of_three_takes_the_wrong_first_move(name: str) -> None:
    for result in call_optimised(train_baseline, name, (0, 1, 2)):
        assert result.right < 0.5
        assert result.path == grid.SAFE_PATH
        assert grid.compute_return(result.path, 0.99) == pytest.approx(SAFE_RETURN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iql", "fql"])
def test_a_horizon_of_one_does_not(name: str) -> None:
    for result in call_optimised(train_baseline, name, (0, 1, 2)):
        assert result.right > 0.5
        assert result.path[1] == grid.SPLICED_PATH[1]
        if name == "iql":
            assert result.path == grid.SPLICED_PATH
