"""A 4x4 grid on which fixed horizons fail and stitched ones do not."""
