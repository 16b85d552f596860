"""Checks before a submission: names that cannot be, and buckets out of reach."""
