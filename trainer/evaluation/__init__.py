"""Acting in the simulator, what came of it, and the report that shows it."""
