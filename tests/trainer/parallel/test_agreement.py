"""One process agrees with itself; tests/integration has several processes."""

from pathlib import Path

import jax
import pytest
from etils import epath

from trainer.errors import HostsError
from trainer.parallel import agreement
from trainer.parallel.agreement import (
    Stop,
    check_alike,
    check_one_folder,
    gather_facts,
)


def test_a_single_process_agrees_with_itself() -> None:
    facts = {"config": {"batch": 8}, "fingerprint": "a"}
    check_alike(facts)
    assert gather_facts(facts) == [facts]
    stop = Stop(ahead=15)
    assert not stop.reached(5, told=False)
    assert stop.reached(10, told=True)  # At once.


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process agrees with itself as if it was process 1, and 0 said the same."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(agreement, "wait_for_all", lambda where: None)

    def gather(facts: agreement.Facts) -> list[agreement.Facts]:
        return [facts | {"token": "mark"}, facts]

    monkeypatch.setattr(agreement, "gather_facts", gather)


@pytest.mark.usefixtures("second_of_two")
def test_a_new_folder_may_appear_late(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on NFS, whose clients remember that a folder did not exist."""
    file = epath.Path(tmp_path / "run" / "run.json")
    waited = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            file.parent.mkdir()
            (file.parent / "run.json.mark").write_text("")

    monkeypatch.setattr(agreement.time, "sleep", wait)
    check_one_folder(file)
    assert len(waited) == 3


@pytest.mark.usefixtures("second_of_two")
def test_a_folder_that_never_appears_is_another_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(agreement, "_BELIEF_S", 0.1)
    with pytest.raises(HostsError, match=r"another folder for process 0 on .*, 1 on"):
        check_one_folder(epath.Path(tmp_path / "run" / "run.json"))
