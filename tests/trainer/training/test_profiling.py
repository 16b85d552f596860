"""Traces of calls: written when asked for, whole even if the run is short."""

import io
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax._src import profiler
from rich.console import Console

from trainer.training import profiling

QUIET = Console(quiet=True)
WARM, TRACED = profiling.WARM_UP_CALLS, profiling.TRACED_CALLS


def traces(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.xplane.pb"))


def test_a_long_run_is_traced_once(tmp_path: Path) -> None:
    call = jax.jit(lambda x: x + 1)
    value = jnp.zeros(3)
    with profiling.trace_calls(tmp_path, console=QUIET) as after_call:
        for number in range(1, WARM + TRACED + 5):
            value = call(value)
            after_call(value)
            assert bool(traces(tmp_path)) == (number >= WARM + TRACED)
    assert len(traces(tmp_path)) == 1


def test_only_traced_calls_lie_between_start_and_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda _: events.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    with profiling.trace_calls(tmp_path, console=QUIET) as after_call:
        for number in range(WARM + TRACED + 2):
            events.append(number)
            after_call(jnp.zeros(()))
    assert events.count("start") == events.count("stop") == 1
    assert events.index("stop") - events.index("start") == TRACED + 1


def test_a_short_run_keeps_what_there_is(tmp_path: Path) -> None:
    with profiling.trace_calls(tmp_path, console=QUIET) as after_call:
        for _ in range(WARM):
            after_call(jnp.zeros(()))
        assert not traces(tmp_path)
    assert len(traces(tmp_path)) == 1


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with (
        pytest.raises(ValueError, match="--profile: expected a folder"),
        profiling.trace_calls(file, console=QUIET),
    ):
        pass
    assert file.read_text() == "precious"


def test_nothing_is_traced_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: str) -> None:
        raise AssertionError(folder)

    monkeypatch.setattr(jax.profiler, "start_trace", refuse)
    with profiling.trace_calls(None, console=QUIET) as after_call:
        for _ in range(WARM + TRACED):
            after_call(jnp.zeros(()))


@pytest.fixture
def _lost_traces() -> Iterator[None]:
    """Ends a trace that JAX failed to write, which otherwise none could follow."""
    yield
    profiler._profile_state.reset()


@pytest.mark.usefixtures("_lost_traces")
def test_a_trace_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=300)
    folder = tmp_path / "traces"
    with profiling.trace_calls(folder, console=console) as after_call:
        for number in range(1, WARM + TRACED + 2):
            after_call(jnp.zeros(()))
            if number == WARM:
                # Another process replaces the folder by a file while calls are traced.
                folder.rmdir()
                folder.write_text("precious")
    assert f"warning: the trace could not be written to {folder} (" in shown.getvalue()
    assert folder.read_text() == "precious"
