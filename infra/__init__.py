"""Launches the pipeline and the trainer on machines of cloud providers."""
