"""Pictures of an episode, drawn by a process of its own.

The process plays a recorded episode again, which is a function of seeds and actions,
and so comes by the physics states that no policy sees. Its parent needs neither MuJoCo
nor an OpenGL driver, and outlives a crash of the latter.

Dimensions: T steps, S observation, A action.
"""

import contextlib
import os
import signal
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.frames import (
    Image,
    PhysicsState,
    aim_camera,
    hide_reflections,
    make_renderer,
    write_state,
)
from pipeline.domains.opengl import NoBackendError, choose_backends, use_backend
from trainer.errors import EvaluationError
from trainer.evaluation.child import Child, Failure
from trainer.evaluation.environments import (
    EpisodeEnvironment,
    make_task_environment,
)

Float32 = npt.NDArray[np.float32]

# Importing MuJoCo and a first picture in software take a few seconds.
_START_TIMEOUT_S = 120.0
_GHOST_ALPHA, _GHOST_COLOR, _GHOST_GLOW = 0.4, 0.6, 0.4
# A part that the two configurations share is drawn once: metres, and cosines.
_SAME = 1e-3


class Painter:
    """A process that plays episodes again and draws their states.

    A context manager; entering it finds the backend.

    Args:
        spec: The environment.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.

    Raises:
        NoBackendError: On entering, if nothing can be drawn here.
        EvaluationError: If the environment or its process fails.
    """

    def __init__(
        self, spec: TaskEnvironment, *, width: int = 480, height: int = 360
    ) -> None:
        self._spec = spec
        self._size = (height, width)
        self._child: Child | None = None
        self.backend = ""

    def __enter__(self) -> "Painter":
        failed = []
        for backend in choose_backends(os.environ):
            child = Child(
                f"painter-{backend}",
                f"{self._spec.environment_id}, drawing with {backend}",
                _serve,
                (backend, self._spec, self._size),
            )
            try:
                child.receive(_START_TIMEOUT_S)
            except EvaluationError as error:
                child.close()
                reason = str(error).partition(": ")[2]
                failed.append(f"{backend}: {reason.splitlines()[0][:120]}")
            except BaseException:
                child.close()
                raise
            else:
                self._child, self.backend = child, backend
                return self
        raise NoBackendError(
            f"nothing is drawn, no OpenGL backend works here ({'; '.join(failed)}); "
            "install Mesa's libegl1 and libgl1-mesa-dri, or libosmesa6"
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def replay(
        self, seed: int, episode: int, observations: Float32, actions: Float32
    ) -> list[PhysicsState]:
        """Plays an episode again. What is drawn later shows that episode's goal.

        Args:
            seed: Of the evaluation.
            episode: Its number.
            observations: ``f32[T, S]``, before each action, as they were then.
            actions: ``f32[T, A]``.

        Returns:
            The states before each action.

        Raises:
            EvaluationError: If it does not come out the same.
        """
        states: list[PhysicsState] = self._ask((seed, episode, observations, actions))
        return states

    def draw(self, now: PhysicsState, ghost: PhysicsState | None = None) -> Image:
        """Draws a state, and transparently within it another one.

        Args:
            now: Drawn solid.
            ghost: What moves is drawn transparent in this state, where it differs.

        Returns:
            ``u8[height, width, 3]``.
        """
        image: Image = self._ask((now, ghost))
        return image

    def _ask(self, message: tuple[Any, ...]) -> Any:
        assert self._child is not None, "enter the painter first"
        self._child.send(message)
        return self._child.receive()


def _serve(
    connection: Connection, backend: str, spec: TaskEnvironment, size: tuple[int, int]
) -> None:
    """Runs the child: replays and draws as its parent asks, until that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        use_backend(backend)
        easel = _Easel(make_task_environment(spec), size)
        connection.send(None)
        with contextlib.closing(easel):
            while True:
                message = connection.recv()
                replay = len(message) == 4
                connection.send((easel.replay if replay else easel.draw)(*message))
    except EOFError:
        return
    except Exception as error:  # Sent to the parent, which raises it.
        summary = f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            connection.send(Failure(summary, traceback.format_exc()))


class _Easel:
    """An environment and a renderer for its model."""

    def __init__(self, environment: Any, size: tuple[int, int]) -> None:
        environment.reset(seed=0)
        self._environment = environment
        self._size = size
        self._model: Any = None
        self._renderer: Any = None

    def close(self) -> None:
        """Frees the renderer while there still is a context to free it in."""
        if self._renderer is not None:
            self._renderer.close()

    def replay(
        self, seed: int, episode: int, observations: Float32, actions: Float32
    ) -> list[PhysicsState]:
        player = EpisodeEnvironment(self._environment, seed, [episode])
        states = []
        for step, (seen, action) in enumerate(zip(observations, actions, strict=True)):
            if not np.array_equal(player.observation.ravel(), seen):
                raise ValueError(
                    f"episode {episode}, step {step}: played again, it does not come "
                    "out as it was; was it recorded with another version of mujoco or "
                    "ogbench?"
                )
            states.append(_read_state(self._environment.unwrapped))
            player.step(action)
        return states

    def draw(self, now: PhysicsState, ghost: PhysicsState | None) -> Image:
        import mujoco

        environment = self._environment.unwrapped
        option = mujoco.MjvOption()
        write_state(environment, now)
        camera = aim_camera(environment, [now, ghost or now])
        renderer = self._current_renderer()
        renderer.update_scene(environment.data, camera=camera, scene_option=option)
        hide_reflections(renderer)
        if ghost is not None:
            scene = renderer.scene
            solid = {geom.objid: _look(geom) for geom in _geoms(scene, 0)}
            first = scene.ngeom
            write_state(environment, ghost)
            mujoco.mjv_addGeoms(
                environment.model,
                environment.data,
                option,
                mujoco.MjvPerturb(),
                mujoco.mjtCatBit.mjCAT_DYNAMIC.value,
                scene,
            )
            for geom in _geoms(scene, first):
                same = np.allclose(_look(geom), solid.get(geom.objid, 0), atol=_SAME)
                geom.rgba[3] = 0.0 if same else geom.rgba[3] * _GHOST_ALPHA
                # Paler than a task's goal, which is drawn transparent as well.
                geom.rgba[:3] = 1 - _GHOST_COLOR * (1 - geom.rgba[:3])
                geom.emission = _GHOST_GLOW
        return np.asarray(renderer.render())

    def _current_renderer(self) -> Any:
        """The renderer, made anew if a reset has compiled another model."""
        model = self._environment.unwrapped.model
        if self._model is not model:
            self.close()
            self._renderer = make_renderer(model, self._size)
            self._model = model
        return self._renderer


def _geoms(scene: Any, first: int) -> Iterator[Any]:
    """The scene's geometries of the model, from an index on; not its decorations."""
    import mujoco

    for geom in scene.geoms[first : scene.ngeom]:
        if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM:
            yield geom


def _look(geom: Any) -> npt.NDArray[np.float64]:
    """Place, direction and colour of a geometry: ``f64[16]``."""
    return np.concatenate([geom.pos, geom.mat.ravel(), geom.rgba]).astype(np.float64)


def _read_state(environment: Any) -> PhysicsState:
    buttons = getattr(environment, "_cur_button_states", None)
    return PhysicsState(
        environment.data.qpos.copy(),
        environment.data.qvel.copy(),
        None if buttons is None else np.array(buttons, np.int64),
    )
