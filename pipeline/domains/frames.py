"""Pictures of physics states, rendered by their environment.

A crash of MuJoCo or of an OpenGL driver ends its process, so rendering has a process of
its own.
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
from pipeline.domains.environments import ignore_known_warnings, make_named_environment
from pipeline.domains.opengl import NoBackendError, choose_backends, use_backend

Image = npt.NDArray[np.uint8]

# Generous: importing MuJoCo and rendering a first picture on the CPU take seconds.
_TIMEOUT_S = 120.0
_ARM_MODULES = "ogbench.manipspace."


class PhysicsState(NamedTuple):
    """The state of an environment, as far as a picture shows it.

    Attributes:
        qpos: ``f64[nq]``, generalised positions.
        qvel: ``f64[nv]``, generalised velocities.
        button_states: ``i64[n]``, states of the buttons of the scene and puzzle
            domains; None elsewhere.
    """

    qpos: npt.NDArray[np.float64]
    qvel: npt.NDArray[np.float64]
    button_states: npt.NDArray[np.int64] | None


def write_state(environment: Any, state: PhysicsState) -> None:
    """Puts an environment without wrappers into a state."""
    buttons = () if state.button_states is None else (state.button_states,)
    environment.set_state(state.qpos, state.qvel, *buttons)


def aim_camera(environment: Any, states: Sequence[PhysicsState]) -> Any:
    """Makes a camera from which all states are seen.

    Args:
        environment: An environment without wrappers, in one of the states.
        states: The states to show.

    Returns:
        An ``MjvCamera`` that shows the whole arm; in a maze, one above the positions of
        all states; in other environments, one that looks at the moving body.
    """
    import mujoco

    camera = mujoco.MjvCamera()
    if hasattr(environment, "maze_map"):
        positions = np.stack([state.qpos[:2] for state in states])
        low, high = positions.min(axis=0), positions.max(axis=0)
        camera.lookat[:] = (*(low + high) / 2, 0.5)
        extent = float(np.linalg.norm(high - low))
        camera.distance = 8.0 + 1.5 * extent
        camera.azimuth, camera.elevation = 90.0, -80.0
    elif type(environment).__module__.startswith(_ARM_MODULES):
        # In front of the table, further away than the environments' own cameras, which
        # cut off an arm that is held high.
        camera.lookat[:] = (0.3, 0.0, 0.28)
        camera.distance, camera.azimuth, camera.elevation = 1.4, 180.0, -28.0
    else:
        mujoco.mjv_defaultFreeCamera(environment.model, camera)
        camera.lookat[:] = environment.data.subtree_com[0]
    return camera


def make_renderer(model: Any, size: tuple[int, int]) -> Any:
    """Makes a ``mujoco.Renderer`` for pictures of ``(height, width)`` pixels."""
    import mujoco

    height, width = size
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    return mujoco.Renderer(model, height, width)


def hide_reflections(renderer: Any) -> None:
    """Switches off mirror images on the floor; call it after ``update_scene``."""
    import mujoco

    # Mirror images take half of the rendering time and hide objects on the floor.
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False


def draw_states(
    spec: TaskEnvironment, states: Sequence[PhysicsState], *, width: int, height: int
) -> list[Image]:
    """Renders states in a child process.

    Args:
        spec: The environment.
        states: States of the environment.
        width: Width of a picture in pixels.
        height: Height of a picture in pixels.

    Returns:
        ``u8[height, width, 3]`` for each state.

    Raises:
        NoBackendError: If no backend can render here; the message has the reason of
            each.
    """
    failures = []
    for backend in choose_backends(os.environ):
        outcome = _draw_with(backend, spec, states, (height, width))
        if not isinstance(outcome, str):
            return outcome
        failures.append(f"{backend}: {outcome}")
    raise NoBackendError(
        f"nothing is drawn of {spec.environment_id} here ({'; '.join(failures)}); "
        "OpenGL without a display needs Mesa's libegl1 and libgl1-mesa-dri, or "
        "libosmesa6"
    )


def _draw_with(
    backend: str,
    spec: TaskEnvironment,
    states: Sequence[PhysicsState],
    size: tuple[int, int],
) -> list[Image] | str:
    """Returns pictures, or one line that says why there are none."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(
        target=_serve, args=(theirs, backend, spec, list(states), size), daemon=True
    )
    child.start()
    # With a second copy of the child's end open here, the child's death would not end
    # the wait for its answer.
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
    """Runs in the child: sends pictures, or one line that says what went wrong."""
    try:
        use_backend(backend)
        with ignore_known_warnings():
            connection.send(_draw(spec, states, size))
    except Exception as error:  # Sent to the parent, which reports the reason.
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
            # Aimed at all states, in a maze the camera rests while the body moves.
            camera = aim_camera(environment, states)
            renderer.update_scene(environment.data, camera=camera)
            hide_reflections(renderer)
            images.append(np.array(renderer.render()))
    return images
