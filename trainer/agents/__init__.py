"""Agents: the algorithms, each with its settings, and the list of them."""
