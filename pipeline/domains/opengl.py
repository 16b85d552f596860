"""The choice of an OpenGL backend on a machine that may have no display.

MuJoCo picks its backend when it is imported, and a faulty driver can end the
process, so ``use_backend`` is called in a child process.
"""

import os
from collections.abc import Mapping

# MuJoCo's names, in the order in which they are tried: EGL needs a driver of a GPU or
# Mesa's, OSMesa renders on the CPU and is slower.
BACKENDS = ("egl", "osmesa")
_OFF = frozenset({"disable", "disabled", "off", "false", "no", "none", "0"})

_PROBE = """
<mujoco><worldbody><light pos="0 0 3"/>
<geom type="sphere" size="1" rgba="1 1 1 1"/></worldbody></mujoco>
"""


class NoBackendError(RuntimeError):
    """Nothing can be rendered here; the message says in one line what was tried."""


def choose_backends(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Lists the backends to try.

    Args:
        environ: Environment variables of the process. ``MUJOCO_GL`` names the first
            backend to try or forbids all. ``CUDA_VISIBLE_DEVICES`` is not read, because
            EGL numbers its devices in an order of its own.

    Returns:
        MuJoCo's names of backends, in the order in which to try them.

    Raises:
        NoBackendError: If ``MUJOCO_GL`` switches rendering off.

    Example:
        >>> choose_backends({"CUDA_VISIBLE_DEVICES": "1,0"})
        ('egl', 'osmesa')
        >>> choose_backends({"MUJOCO_GL": "osmesa"})
        ('osmesa', 'egl')
    """
    asked = environ.get("MUJOCO_GL", "").strip().lower()
    if asked in _OFF:
        raise NoBackendError(
            f"nothing is drawn: MUJOCO_GL={asked} switches it off; unset it to draw"
        )
    return tuple(dict.fromkeys((asked, *BACKENDS) if asked else BACKENDS))


def use_backend(name: str) -> None:
    """Makes this process render with a backend; call it before MuJoCo is imported.

    Args:
        name: A name that ``choose_backends`` returned.

    Raises:
        Exception: Any error of MuJoCo or of the driver.
        RuntimeError: If the backend renders only black.
    """
    os.environ["MUJOCO_GL"] = name
    # MuJoCo sets this variable to match, and refuses any other backend in it.
    os.environ.pop("PYOPENGL_PLATFORM", None)
    import mujoco

    model = mujoco.MjModel.from_xml_string(_PROBE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = mujoco.Renderer(model, 16, 16)
    try:
        renderer.update_scene(data)
        image = renderer.render()
    finally:
        renderer.close()
    if not image.any():
        raise RuntimeError("its picture of a white sphere is black")
