"""Destinations of a run's metrics while it trains: files of the run, and services."""
