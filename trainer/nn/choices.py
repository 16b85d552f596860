"""Names of the choices that configurations have about networks.

This module needs no JAX, so that a launcher can check configurations.
"""

from typing import Literal

# Precision of the hidden layers' matrix products, see ``nn.networks.MLP``.
Precision = Literal["float32", "bfloat16"]
# Reduction of several critics' values to one, see ``nn.losses.aggregate``.
Aggregation = Literal["min", "mean"]
# Scaling of states for networks, see ``agents.base.observation_scale``.
StateScaling = Literal["none", "common", "standard"]
