"""Networks, flows, losses and the optimiser: what all agents share."""
