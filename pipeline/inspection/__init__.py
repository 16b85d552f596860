"""Shows, checks and exports stores, for people. Nothing here writes a store."""
