"""Checks before a submission: invalid names, and unreachable buckets."""
