"""What configurations may choose about networks, by name; it needs no JAX."""

from typing import Literal

# Of the hidden layers' products, see ``nn.networks.MLP``.
Precision = Literal["float32", "bfloat16"]
# Of several critics' values, see ``nn.losses.aggregate``.
Aggregation = Literal["min", "mean"]
