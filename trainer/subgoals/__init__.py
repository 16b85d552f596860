"""Predicted sub-goals against the states that came, measured and drawn."""
