"""``evaluate`` as a function: it passes its arguments on as the command does."""

from typing import Any

import pytest

from pipeline.store.errors import UsageError
from trainer.api import evaluate
from trainer.evaluation import evaluate as evaluation
from trainer.runs.evaluations import EvaluationSettings
from trainer.runs.folder import RunFolder


def test_what_is_asked_for_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def play(folder: RunFolder, settings: EvaluationSettings, **options: Any) -> list:
        asked.update(options, folder=str(folder), settings=settings)
        return ["played"]

    monkeypatch.setattr(evaluation, "evaluate_run", play)
    played = evaluate(
        "runs/a",
        episodes=3,
        seed=2,
        steps=[10],
        workers=1,
        reference_scores=(0, 5),
        candidates=1,
    )
    assert played == ["played"]
    assert asked.pop("console").quiet
    assert asked == {
        "folder": "runs/a",
        "settings": EvaluationSettings(3, 2, 8, 1, (0.0, 5.0)),
        "steps": [10],
        "tasks": (),
        "again": False,
        "environment": None,
        "candidates": 1,
    }
    with pytest.raises(UsageError, match="episodes: expected at least 1"):
        evaluate("runs/a", episodes=0)
    with pytest.raises(UsageError, match="larger one that counts as 100"):
        evaluate("runs/a", reference_scores=(5, 5))
