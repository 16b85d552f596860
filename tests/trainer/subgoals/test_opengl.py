"""Drawing without a display: which backend, and what is said where there is none."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.frames import PhysicsState
from pipeline.domains.opengl import NoBackendError, choose_backends
from trainer.errors import EvaluationError
from trainer.evaluation.environments import (
    EpisodeEnvironment,
    make_task_environment,
)
from trainer.subgoals.painter import Painter

ANT = TaskEnvironment("antmaze-medium-singletask-task1-v0")
SIZE = {"width": 96, "height": 72}


def draws_here() -> bool:
    """Whether this machine has a driver that MuJoCo can use, found out by hand."""
    names = ("libEGL.so.1", "libOSMesa.so.8", "libOSMesa.so.6")
    folders = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
    return any((Path(f) / name).exists() for f in folders for name in names)


def record(spec: TaskEnvironment, steps: int) -> tuple[Any, Any]:
    """Observations and actions of a wild episode 2 of seed 7."""
    environment = make_task_environment(spec)
    player = EpisodeEnvironment(environment, 7, [2])
    width = environment.action_space.shape[0]
    observations, actions = [], []
    for step in range(steps):
        observations.append(player.observation.ravel())
        actions.append(np.sin(np.arange(width) + step / 5).astype(np.float32))
        player.step(actions[-1])
    return np.stack(observations), np.stack(actions)


def test_backends_in_order() -> None:
    assert choose_backends({}) == ("egl", "osmesa")
    # A list of devices, or the name of one, is not EGL's business.
    for devices in ("1,0", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"):
        assert choose_backends({"CUDA_VISIBLE_DEVICES": devices}) == ("egl", "osmesa")
    assert choose_backends({"MUJOCO_GL": "OSMesa"}) == ("osmesa", "egl")
    for off in ("disabled", "none", "0"):
        with pytest.raises(NoBackendError, match=f"MUJOCO_GL={off} switches it off"):
            choose_backends({"MUJOCO_GL": off})


def test_without_a_backend_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "trainer.subgoals.painter.choose_backends", lambda environ: ("nonesuch",)
    )
    with (
        pytest.raises(NoBackendError) as raised,
        Painter(TaskEnvironment("pointmaze-medium-v0")),
    ):
        pass
    message = str(raised.value)
    assert message.startswith(
        "nothing is drawn: no OpenGL backend works here (nonesuch:"
    )
    assert message.endswith("install Mesa's libegl1 and libgl1-mesa-dri, or libosmesa6")
    assert "\n" not in message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "devices", ["1,0", pytest.param("GPU-8932f937-d72c", marks=pytest.mark.slow)]
)
def test_a_picture_or_one_line(monkeypatch: pytest.MonkeyPatch, devices: str) -> None:
    """An ant, its ghost, and the episode they are of; a refusal where none can be."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    if not draws_here():
        with pytest.raises(NoBackendError, match=r"egl: .*osmesa: "), Painter(ANT):
            pass
        return
    observations, actions = record(ANT, steps=8)
    with Painter(ANT, **SIZE) as painter:
        assert painter.backend in ("egl", "osmesa")
        states = painter.replay(7, 2, observations, actions)
        plain = painter.draw(states[0])
        ghost = painter.draw(states[0], states[7])
        again = painter.draw(states[0], states[0])
        other = painter.draw(states[7])
        # Played again with one action changed, it is another episode.
        actions[3] *= -1
        with pytest.raises(EvaluationError, match="step 4: expected the observation"):
            painter.replay(7, 2, observations, actions)
    assert "MUJOCO_GL" not in os.environ  # Chosen in the child, not for this process.
    assert os.environ["CUDA_VISIBLE_DEVICES"] == devices
    assert len(states) == 8
    np.testing.assert_array_equal(
        np.concatenate([states[5].qpos, states[5].qvel]).astype(np.float32),
        observations[5],
    )
    assert plain.shape == (72, 96, 3)
    assert plain.std() > 10
    # Nothing to see where both are the same, apart from the camera's place.
    np.testing.assert_array_equal(plain, again)
    assert (plain != ghost).any(axis=-1).mean() > 0.005
    assert (plain != other).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cube-double", "scene", "puzzle-3x3", "antmaze-large"]
)
def test_every_domain_draws(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert draws_here(), "this machine cannot draw; install libegl1 and libgl1-mesa-dri"
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    spec = TaskEnvironment(f"{name}-singletask-task1-v0")
    observations, actions = record(spec, steps=20)
    with Painter(spec, **SIZE) as painter:
        states = painter.replay(7, 2, observations, actions)
        plain, ghost = (painter.draw(states[0], other) for other in (None, states[19]))
        assert (plain != ghost).any(axis=-1).mean() > 0.005
        buttons = states[0].button_states
        assert (buttons is not None) == (name in ("scene", "puzzle-3x3"))
        if buttons is not None:
            # A button of another colour is a difference too.
            pressed = PhysicsState(states[0].qpos, states[0].qvel, 1 - buttons)
            assert (painter.draw(states[0], pressed) != plain).any()
