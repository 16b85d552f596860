"""Labels of whole episodes, whose tasks are judged before or after a step."""

import dataclasses

import numpy as np

from pipeline.assembly.labels import label_episodes


def test_n6_labels_after_the_step_lie_a_row_earlier(make_rows, tasks):
    lengths = np.array([25, 1, 14, 2])
    rows = make_rows(lengths)
    after = [dataclasses.replace(tasks[0], success_timing="post"), tasks[1]]
    states = label_episodes(tasks[:2], (0.5,), rows, lengths)
    moved = label_episodes(after, (0.5,), rows, lengths)

    rewards, masks, returns = [], [], []
    for length, end in zip(lengths, np.cumsum(lengths), strict=True):
        of_episode = states["rewards"][end - length + 1 : end, 0].tolist()
        rewards += [*of_episode, 0]
        masks += [*map(abs, of_episode), 1]
        for row in range(length):
            ahead = of_episode[row:]
            # A cube has one part, so that the reward is 0 where it is in place.
            stop = ahead.index(0) if 0 in ahead else len(ahead)
            returns.append(sum(-(0.5**step) for step in range(stop)))
    assert 0 < sum(masks) < len(masks), "some are solved, others not"
    assert moved["rewards"][:, 0].tolist() == rewards
    assert moved["masks"][:, 0].tolist() == masks
    assert moved["returns/0.5"][:, 0].tolist() == returns
    for name, values in moved.items():
        np.testing.assert_array_equal(values[:, 1], states[name][:, 1])
