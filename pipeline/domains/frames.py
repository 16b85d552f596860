"""Physics states, drawn by the environment that they are of.

MuJoCo and its OpenGL drivers can take a process down, so drawing is done by one of its
own.
"""

import contextlib
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.environments import known_warnings_ignored, make_named_environment
from pipeline.domains.opengl import NoBackendError, choose_backends, use_backend

Image = npt.NDArray[np.uint8]

# Importing MuJoCo and a first picture in software take a few seconds.
_TIMEOUT_S = 120.0
_ARM_MODULES = "ogbench.manipspace."


class PhysicsState(NamedTuple):
    """Everything that says what an environment looks like.

    Attributes:
        qpos: ``f64[nq]``, generalised positions.
        qvel: ``f64[nv]``, generalised velocities.
        button_states: ``i64[n]`` of the scene and puzzle domains, else None.
    """

    qpos: npt.NDArray[np.float64]
    qvel: npt.NDArray[np.float64]
    button_states: npt.NDArray[np.int64] | None


def write_state(environment: Any, state: PhysicsState) -> None:
    """Puts a bare environment into a state."""
    buttons = () if state.button_states is None else (state.button_states,)
    environment.set_state(state.qpos, state.qvel, *buttons)


def aim_camera(environment: Any, states: Sequence[PhysicsState]) -> Any:
    """A camera that shows the whole arm; in a maze, one above the place of all states.

    Args:
        environment: Bare, in one of the states.
        states: That are shown.

    Returns:
        An ``MjvCamera``; of other environments, one that looks at what moves.
    """
    import mujoco

    camera = mujoco.MjvCamera()
    if hasattr(environment, "maze_map"):
        places = np.stack([each.qpos[:2] for each in states])
        low, high = places.min(axis=0), places.max(axis=0)
        camera.lookat[:] = (*(low + high) / 2, 0.5)
        apart = float(np.linalg.norm(high - low))
        camera.distance = 8.0 + 1.5 * apart
        camera.azimuth, camera.elevation = 90.0, -80.0
    elif type(environment).__module__.startswith(_ARM_MODULES):
        # In front of the table, further away than the domains' own: those cut off
        # an arm that is held high.
        camera.lookat[:] = (0.3, 0.0, 0.28)
        camera.distance, camera.azimuth, camera.elevation = 1.4, 180.0, -28.0
    else:
        mujoco.mjv_defaultFreeCamera(environment.model, camera)
        camera.lookat[:] = environment.data.subtree_com[0]
    return camera


def make_renderer(model: Any, size: tuple[int, int]) -> Any:
    """A ``mujoco.Renderer`` of pictures of ``(height, width)`` pixels."""
    import mujoco

    height, width = size
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    return mujoco.Renderer(model, height, width)


def hide_reflections(renderer: Any) -> None:
    """Draws the floor without its mirror image, after ``update_scene``."""
    import mujoco

    # A floor that mirrors takes half of the time and hides what stands on it.
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False


def draw_states(
    spec: TaskEnvironment, states: Sequence[PhysicsState], *, width: int, height: int
) -> list[Image]:
    """Draws states, in a process of its own.

    Args:
        spec: The environment.
        states: In it.
        width: Of a picture, in pixels.
        height: Of a picture, in pixels.

    Returns:
        ``u8[height, width, 3]`` of each state.

    Raises:
        NoBackendError: If nothing can be drawn here; the message says why.
    """
    failed = []
    for backend in choose_backends(os.environ):
        images = _draw_with(backend, spec, states, (height, width))
        if not isinstance(images, str):
            return images
        failed.append(f"{backend}: {images}")
    raise NoBackendError(
        f"nothing is drawn of {spec.environment_id} here ({'; '.join(failed)}); OpenGL "
        "without a display needs Mesa's libegl1 and libgl1-mesa-dri, or libosmesa6"
    )


def _draw_with(
    backend: str,
    spec: TaskEnvironment,
    states: Sequence[PhysicsState],
    size: tuple[int, int],
) -> list[Image] | str:
    """Pictures, or in one line why there are none."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(
        target=_serve, args=(theirs, backend, spec, list(states), size), daemon=True
    )
    child.start()
    # Kept open here, it would hide that the child has died.
    theirs.close()
    try:
        if not ours.poll(_TIMEOUT_S):
            return f"no picture within {_TIMEOUT_S:g} s"
        answer: list[Image] | str = ours.recv()
        return answer
    except (EOFError, OSError):
        child.join(1.0)
        return f"the process that draws has died (exit code {child.exitcode})"
    finally:
        ours.close()
        child.kill()
        child.join()


def _serve(
    connection: Connection,
    backend: str,
    spec: TaskEnvironment,
    states: Sequence[PhysicsState],
    size: tuple[int, int],
) -> None:
    """Runs the child: sends pictures, or what went wrong."""
    try:
        use_backend(backend)
        with known_warnings_ignored():
            connection.send(_draw(spec, states, size))
    except Exception as error:  # Sent to the parent, which says it.
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        with contextlib.suppress(OSError):
            connection.send(reason[:160])


def _draw(
    spec: TaskEnvironment, states: Sequence[PhysicsState], size: tuple[int, int]
) -> list[Image]:
    environment = make_named_environment(spec).unwrapped
    environment.reset(seed=0)
    images = []
    with contextlib.closing(make_renderer(environment.model, size)) as renderer:
        for state in states:
            write_state(environment, state)
            # One that stands still in a maze: what moves is the body.
            camera = aim_camera(environment, states)
            renderer.update_scene(environment.data, camera=camera)
            hide_reflections(renderer)
            images.append(np.array(renderer.render()))
    return images
