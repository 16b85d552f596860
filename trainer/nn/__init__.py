"""Networks, flows, losses and the optimiser, which all agents share."""
