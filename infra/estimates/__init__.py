"""Estimates of what a stage will take: machines, rates, memory and hours."""
