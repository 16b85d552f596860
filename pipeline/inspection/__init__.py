"""What is there of a store, for people. Nothing here writes a store."""
