"""An episode as a video that browsers play without a plug-in."""

import io
from collections.abc import Sequence
from typing import cast

from pipeline.domains.frames import Image
from pipeline.store.errors import MissingPackageError

try:
    import av
except ImportError as error:
    raise MissingPackageError(
        f"writing a video needs av ({error}); pip install 'vast-rl[report]'"
    ) from error

FRAMES_PER_SECOND = 10
# VP9 needs no licence, and every browser plays it. Its authors advise this quality for
# 480 lines. Without marks of time and version, equal frames give equal files.
_CODEC, _QUALITY = "libvpx-vp9", "34"
_EXACT = "+bitexact"


def encode_video(images: Sequence[Image]) -> bytes:
    """Makes a WebM file.

    Args:
        images: ``u8[height, width, 3]`` each, at least one; height and width are even.

    Returns:
        The bytes of the file.
    """
    height, width = images[0].shape[:2]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="webm", options={"fflags": _EXACT}) as container:
        stream = cast(
            av.VideoStream, container.add_stream(_CODEC, rate=FRAMES_PER_SECOND)
        )
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.options = {"crf": _QUALITY, "b:v": "0", "flags": _EXACT}
        # One thread: the bytes must not depend on the number of cores.
        stream.thread_count = 1
        for image in images:
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()
