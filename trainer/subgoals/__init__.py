"""Predicted sub-goals against what came, measured and drawn."""
