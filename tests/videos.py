"""A short animation as a file."""

import io

import numpy as np
from PIL import Image


def make_gif(frames: int = 3) -> bytes:
    """Makes an animation like those that `subgoals` writes."""
    images = [
        Image.fromarray(np.full((24, 32, 3), 80 * index, np.uint8))
        for index in range(frames)
    ]
    buffer = io.BytesIO()
    images[0].save(
        buffer, format="GIF", save_all=True, append_images=images[1:], duration=100
    )
    return buffer.getvalue()
