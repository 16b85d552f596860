"""Acting in the simulator, while training goes on or after it."""
