"""The training loop, its session, and the metrics that it records."""
