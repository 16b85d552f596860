"""A 4x4 grid and a chain: tasks on which fixed horizons fail and stitching does not."""
