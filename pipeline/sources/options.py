"""Choices of how data are read, as the command line offers them.

Loads nothing, so that help is quick.
"""

from typing import Literal

OnBadEpisode = Literal["refuse", "skip"]
OnKnownEpisode = Literal["refuse", "keep"]
OnBadFile = Literal["refuse", "skip"]

# Rows aimed at for each part of a store.
PART_ROWS = 1_000_000
# Where OGBench's own files are published.
MIRROR = "https://rail.eecs.berkeley.edu/datasets/ogbench"
