"""A video holds the frames that it was made of, and is the same each time."""

import io

import av
import numpy as np

from trainer.subgoals.video import FRAMES_PER_SECOND, encode_video


def test_frames_come_back() -> None:
    images = [np.full((24, 32, 3), 60 * index, np.uint8) for index in range(4)]
    video = encode_video(images)
    assert video == encode_video(images)
    with av.open(io.BytesIO(video)) as container:
        assert container.streams.video[0].codec_context.name == "vp9"
        # Microseconds: a player shows how long it is, and can seek.
        assert container.duration == 4 * 1_000_000 // FRAMES_PER_SECOND
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode()]
    assert len(shown) == len(images)
    for image, frame in zip(images, shown, strict=True):
        assert np.abs(frame.astype(int) - image).max() < 8
