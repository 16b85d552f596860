"""Which checkpoints are kept, by steps alone; ``test_checkpoints`` asks Orbax."""

from collections.abc import Sequence
from types import SimpleNamespace

from trainer.runs.retention import Retention


def save(
    retention: Retention, saved: Sequence[int], present: Sequence[int] = ()
) -> list[int]:
    """Steps that are left after some saves, each of which deletes what is not kept."""
    steps = list(present)
    for step in saved:
        steps.append(step)
        kept = retention.should_preserve(
            [SimpleNamespace(step=each) for each in steps], context=None
        )
        steps = [each for each, stays in zip(steps, kept, strict=True) if stays]
    return steps


def test_preempted_steps_are_kept_where_nothing_else_is() -> None:
    retention = Retention(keep=3, every=100)
    assert save(retention, [30, 60, 90, 95]) == [60, 90, 95]
    assert save(retention, [30, 60, 90, 100]) == [60, 90, 100]
    # Multiples push them out, whatever their order.
    assert save(retention, [90, 100, 200, 250]) == [100, 200, 250]
    assert save(retention, [90, 100, 200, 250, 300]) == [100, 200, 300]


def test_checkpoints_of_another_interval_are_not_deleted_at_once() -> None:
    before = [8_000, 9_000, 10_000]
    retention = Retention(keep=3, every=4_000)
    assert save(retention, [12_000], before) == [8_000, 10_000, 12_000]
    assert save(retention, [12_000, 16_000], before) == [8_000, 12_000, 16_000]


def test_one_checkpoint_is_the_latest() -> None:
    assert save(Retention(keep=1, every=10), [5, 10, 15]) == [10, 15]
    assert save(Retention(keep=1, every=10), [5, 10, 15, 20]) == [20]
