"""Grids of runs: data sets by tasks by methods by seeds, one folder each."""
