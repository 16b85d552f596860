"""The loop, its session with folder and devices, and what it records."""
