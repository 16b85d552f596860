"""Cards of exported policies: what is in the run is in them, and as text."""

import dataclasses
from pathlib import Path
from typing import get_args

import pytest

from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError
from tests.evaluated import RUN, evaluation, write_evaluated_run
from trainer.nn.choices import StateScaling
from trainer.report.card import choose_card_path, make_card
from trainer.runs.evaluations import append_evaluation
from trainer.runs.export import Exported
from trainer.runs.folder import RunFolder


def test_a_card_says_data_method_updates_results_and_versions(tmp_path: Path) -> None:
    folder = RunFolder.open(write_evaluated_run(tmp_path))
    exported = Exported(RUN, 2000, (0, 1))
    card = make_card(folder, exported, "policy.safetensors", "safetensors")
    # Names are anybody's: none becomes a tag.
    assert r"# vast on cube-single-play, task 1 (task1\_\<left\>)" in card
    for line in (
        "| fingerprint of the data | made-up |",
        "| rewards | -1 to 0 |",
        r"| agent.max\_horizon | 5 |",
        "2,000 of 4,000 updates were done. The file holds training seeds 0, 1.",
        "| 1 | 0 | 4 | 10 | 60 % success (95 % interval 31 to 83 %) | -200.00 |",
        "| 1 | 1 | 4 | 10 | 70 % success",
        "| jax | 0.0 |",
        "load_file('policy.safetensors')",
    ):
        assert line in card
    # Of other checkpoints and seeds nothing is told.
    assert card.count("% success") == 2
    alone = make_card(folder, Exported(RUN, 1000, (1,)), "p", "safetensors")
    assert alone.count("% success") == 1
    assert "The file holds training seed 1." in alone


def test_a_card_does_not_make_results_up(tmp_path: Path) -> None:
    folder = RunFolder.open(write_evaluated_run(tmp_path))
    untold = dataclasses.replace(
        RUN, versions={}, action_scale=ActionScale((-2, -1), (2, 1))
    )
    card = make_card(folder, Exported(untold, 4000, (7,)), "p.stablehlo", "stablehlo")
    assert "None: this checkpoint was not evaluated." in card
    assert "## Versions\n\nNot recorded." in card
    assert r"from \[-2, -1\] to \[2, 1\]" in card
    append_evaluation(folder, evaluation(4000, 0, 5, task=3))
    other = make_card(folder, Exported(RUN, 4000, (0,)), "p", "safetensors")
    assert "its successes in other tasks are accidents" in other
    assert "| task | seed |" in other


def test_whoever_loads_arrays_learns_how_observations_are_scaled(
    tmp_path: Path,
) -> None:
    folder = RunFolder.open(write_evaluated_run(tmp_path))
    cards = set()
    for how in get_args(StateScaling):
        agent = dataclasses.replace(RUN.config.agent, state_scaling=how)
        config = dataclasses.replace(RUN.config, agent=agent)
        exported = Exported(dataclasses.replace(RUN, config=config), 4000, (0,))
        cards.add(make_card(folder, exported, "p", "safetensors").split("## Use")[1])
    assert len(cards) == len(get_args(StateScaling))
    assert sum("less `facts.observation_mean`" in card for card in cards) == 1


def test_results_in_another_environment_are_told_apart(tmp_path: Path) -> None:
    folder = RunFolder.open(write_evaluated_run(tmp_path))
    exported = Exported(RUN, 4000, (0,))
    headings = "| task | seed | candidates |"
    assert headings in make_card(folder, exported, "p", "safetensors")
    append_evaluation(
        folder,
        evaluation(
            4000, 0, 8, environment_id="Line-v0", environment_arguments={"size": 3}
        ),
    )
    card = make_card(folder, exported, "p", "safetensors")
    assert headings not in card
    for line in (
        "| task | environment | seed | candidates | episodes | success |",
        '| 1 | Line-v0 {"size": 3} | 0 | 4 | 10 | 80 % success',
        "| 1 | cube-single-singletask-task1-v0 | 0 | 4 | 10 | 30 % success",
    ):
        assert line in card


def test_no_file_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "policy.stablehlo"
    assert choose_card_path(file) == tmp_path / "README.md"
    (tmp_path / "README.md").write_text("mine")
    assert choose_card_path(file) == tmp_path / "policy.stablehlo.md"
    (tmp_path / "policy.stablehlo.md").write_text("mine")
    with pytest.raises(
        DataFormatError, match=r"stablehlo\.md: expected no file .* another --o"
    ):
        choose_card_path(file)
