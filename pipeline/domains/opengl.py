"""Which OpenGL backend to draw with on a machine that may have no display.

Knows nothing of environments. MuJoCo picks its backend when it is imported and can
take the process down with it, so what is here is called in a process of its own.
"""

import os
from collections.abc import Mapping

# MuJoCo's names, in the order they are tried: EGL needs a GPU's driver or Mesa's,
# OSMesa draws on the CPU.
BACKENDS = ("egl", "osmesa")
_OFF = frozenset({"disable", "disabled", "off", "false", "no", "none", "0"})

_PROBE = """
<mujoco><worldbody><light pos="0 0 3"/>
<geom type="sphere" size="1" rgba="1 1 1 1"/></worldbody></mujoco>
"""


class NoBackendError(RuntimeError):
    """Nothing can be drawn here; the message says what was tried, in one line."""


def choose_backends(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Which backends to try.

    Args:
        environ: Of the process. ``MUJOCO_GL`` names the first to try or forbids all.
            ``CUDA_VISIBLE_DEVICES`` is not looked at: EGL numbers its devices in an
            order of its own.

    Returns:
        MuJoCo's names of backends, in order.

    Raises:
        NoBackendError: If drawing is switched off.

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
    """Makes this process draw with a backend; to be called before MuJoCo's import.

    Args:
        name: Of ``choose_backends``.

    Raises:
        Exception: Whatever goes wrong in the driver's or MuJoCo's hands.
        RuntimeError: If it draws nothing but black.
    """
    os.environ["MUJOCO_GL"] = name
    # MuJoCo sets it to match, and refuses one that is set to something else.
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
