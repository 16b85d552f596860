"""Generates the parts of the site that the code already knows, and its equations."""
