"""Options for reading data that the command line offers.

The module imports nothing heavy, because the command line loads it to print help.
"""

from typing import Literal

OnBadEpisode = Literal["refuse", "skip"]
OnKnownEpisode = Literal["refuse", "keep"]
OnBadFile = Literal["refuse", "skip"]

# Rows aimed at for each part of a store. A part is the unit of work of one Beam worker.
PART_ROWS = 1_000_000
# Address at which OGBench publishes its files.
MIRROR = "https://rail.eecs.berkeley.edu/datasets/ogbench"
