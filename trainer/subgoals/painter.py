"""Pictures of an episode, drawn by a process of its own.

The process plays a recorded episode again, which depends on seeds and actions alone,
and so obtains the physics states that observations leave out. The parent process needs
neither MuJoCo nor an OpenGL driver, and survives a crash of the driver.

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

# Generous: importing MuJoCo and rendering a first picture on the CPU take seconds.
_START_TIMEOUT_S = 120.0
# Of the sub-goal: opacity, share of its colour that is kept, and light of its own.
_GHOST_ALPHA, _GHOST_COLOR, _GHOST_GLOW = 0.4, 0.6, 0.4
# Parts that are in the same place in both states are drawn once: two surfaces at equal
# depth flicker. In metres, and cosines of angles.
_SAME_PLACE = 1e-3


class Painter:
    """A process that plays episodes again and draws their states.

    A context manager; entering it finds a backend that works.

    Args:
        spec: The environment.
        width: Width of a picture in pixels.
        height: Height of a picture in pixels.

    Raises:
        NoBackendError: On entering, if no backend can render here.
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
        # A backend that does not work may end its process, so each is tried in its own.
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
            f"nothing is drawn: no OpenGL backend works here ({'; '.join(failed)}); "
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
        """Plays an episode again; pictures drawn later show that episode's goal.

        Args:
            seed: Seed of the evaluation.
            episode: Number of the episode.
            observations: ``f32[T, S]``, recorded before each action.
            actions: ``f32[T, A]``, recorded actions.

        Returns:
            The states before each action.

        Raises:
            EvaluationError: If an observation differs from the recorded one.
        """
        states: list[PhysicsState] = self._ask((seed, episode, observations, actions))
        return states

    def draw(self, now: PhysicsState, ghost: PhysicsState | None = None) -> Image:
        """Draws a state, and transparently within it another state.

        Args:
            now: State that is drawn solid.
            ghost: State whose moving parts are drawn transparent where they differ from
                ``now``.

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
    """Runs in the child: replays and draws for the parent until the parent is gone."""
    # Ctrl-C reaches the whole process group; the parent ends its children in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        use_backend(backend)
        easel = _Easel(make_task_environment(spec), size)
        # The parent waits for this before it calls a backend good.
        connection.send(None)
        with contextlib.closing(easel):
            while True:
                message = connection.recv()
                replay = len(message) == 4
                connection.send((easel.replay if replay else easel.draw)(*message))
    except EOFError:  # The parent closed the connection.
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
        """Frees the renderer, which must happen while its OpenGL context exists."""
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
                    f"episode {episode}, step {step}: expected the observation that "
                    "was recorded, got another; install the versions of mujoco and "
                    "ogbench that recorded it"
                )
            states.append(_read_state(self._environment.unwrapped))
            player.step(action)
        return states

    def draw(self, now: PhysicsState, ghost: PhysicsState | None) -> Image:
        import mujoco

        environment = self._environment.unwrapped
        option = mujoco.MjvOption()
        write_state(environment, now)
        # One camera for both states, so that the ghost lies within the picture.
        camera = aim_camera(environment, [now, ghost or now])
        renderer = self._current_renderer()
        renderer.update_scene(environment.data, camera=camera, scene_option=option)
        hide_reflections(renderer)
        if ghost is not None:
            # MuJoCo draws one state: the ghost's geometries are added to its scene.
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
                same = np.allclose(
                    _look(geom), solid.get(geom.objid, 0), atol=_SAME_PLACE
                )
                geom.rgba[3] = 0.0 if same else geom.rgba[3] * _GHOST_ALPHA
                # Paler than a task's goal, which is drawn transparent as well.
                geom.rgba[:3] = 1 - _GHOST_COLOR * (1 - geom.rgba[:3])
                geom.emission = _GHOST_GLOW
        return np.asarray(renderer.render())

    def _current_renderer(self) -> Any:
        """Returns the renderer, made anew if a reset has compiled another model."""
        model = self._environment.unwrapped.model
        if self._model is not model:
            self.close()
            self._renderer = make_renderer(model, self._size)
            self._model = model
        return self._renderer


def _geoms(scene: Any, first: int) -> Iterator[Any]:
    """Lists a scene's geometries of the model, from an index on, not decorations."""
    import mujoco

    for geom in scene.geoms[first : scene.ngeom]:
        if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM:
            yield geom


def _look(geom: Any) -> npt.NDArray[np.float64]:
    """Joins position, orientation and colour of a geometry: ``f64[16]``."""
    return np.concatenate([geom.pos, geom.mat.ravel(), geom.rgba]).astype(np.float64)


def _read_state(environment: Any) -> PhysicsState:
    # OGBench keeps the states of buttons outside of MuJoCo's state.
    buttons = getattr(environment, "_cur_button_states", None)
    return PhysicsState(
        environment.data.qpos.copy(),
        environment.data.qvel.copy(),
        None if buttons is None else np.array(buttons, np.int64),
    )
