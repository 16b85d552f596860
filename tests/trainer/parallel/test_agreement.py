"""One process agrees with itself; tests/integration has several processes."""

from trainer.parallel.agreement import Stop, check_alike, gather_facts


def test_a_single_process_agrees_with_itself() -> None:
    facts = {"config": {"batch": 8}, "fingerprint": "a"}
    check_alike(facts)
    assert gather_facts(facts) == [facts]
    stop = Stop(ahead=15)
    assert not stop.reached(5, told=False)
    assert stop.reached(10, told=True)  # At once.
