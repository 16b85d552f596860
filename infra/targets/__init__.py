"""Targets that stages are submitted to, a module for each kind of cluster."""
