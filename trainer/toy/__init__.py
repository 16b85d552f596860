"""A 4x4 grid and a chain: what three-step backups miss, and an end at success."""
