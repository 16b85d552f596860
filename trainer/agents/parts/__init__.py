"""What several agents are made of."""
