"""``bench``: the options that its two commands accept and refuse."""

from typing import Any

import pytest

from pipeline import front_door
from pipeline.output import Output
from trainer.cli import PROGRAM
from trainer.commands.bench import Bench
from trainer.commands.bench_feed import BenchFeed
from trainer.commands.bench_step import BenchStep


def test_options_of_both() -> None:
    parse = front_door.parse
    line = "bench feed --store gs://b/s --batch-size 8 --json"
    parsed, _ = parse(PROGRAM, line.split())
    assert parsed == Bench(BenchFeed(store="gs://b/s", batch_size=8, json=True))
    line = "bench step --widths 8,16 --mesh data=8 seed=2,fsdp=4 --updates-per-call 5"
    parsed, _ = parse(PROGRAM, line.split())
    meshes = ("data=8", "seed=2,fsdp=4")
    assert parsed == Bench(BenchStep(widths="8,16", mesh=meshes, updates_per_call=5))
    for wrong in ("bench feed", "bench step --store x", "bench"):
        with pytest.raises(SystemExit) as ended:
            parse(PROGRAM, wrong.split())
        assert ended.value.code == 2


def test_numbers_of_bench_step_are_read() -> None:
    for wrong in ("64;128", "", "0"):
        with pytest.raises(ValueError, match="--widths: expected"):
            BenchStep(widths=wrong).execute(Output.silent())


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (BenchStep(updates=0), "updates"),
        (BenchStep(updates_per_call=0), "updates-per-call"),
        (BenchStep(observation_dim=0), "observation-dim"),
        (BenchFeed("store", batch_size=0), "batch-size"),
        (BenchFeed("store", updates_per_call=0), "updates-per-call"),
    ],
)
def test_counts_below_1_are_refused(command: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"--{name}: expected at least 1, got 0"):
        command.execute(Output.silent())


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_measurement_takes_a_finite_time(seconds: float) -> None:
    with pytest.raises(ValueError, match="--seconds: expected a finite time above 0"):
        BenchFeed("store", seconds=seconds).execute(Output.silent())
