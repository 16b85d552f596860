"""Decisions of a session that all processes must make alike."""

import pytest

from tests.trainer.agents.vast_cases import TABLE
from trainer.data.feed_config import FeedConfig
from trainer.parallel import agreement
from trainer.training import session


@pytest.mark.parametrize("other", [True, False])
def test_devices_look_up_rows_if_those_of_all_processes_have_room(
    monkeypatch: pytest.MonkeyPatch, other: bool
) -> None:
    def gather(facts: agreement.Facts) -> list[agreement.Facts]:
        # The second process's devices may have less memory.
        return [facts, dict.fromkeys(facts, other)]

    monkeypatch.setattr(agreement, "gather_facts", gather)
    config = FeedConfig(gather="device")
    assert session._gathers_on_device(config, TABLE) == other
