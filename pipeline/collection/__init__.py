"""Data made with OGBench's scripted policies."""
