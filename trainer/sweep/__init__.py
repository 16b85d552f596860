"""Grids of runs: data sets by tasks by methods by seeds, with a folder for each run."""
