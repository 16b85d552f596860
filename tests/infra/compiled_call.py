"""Figures of a program, as `python -m trainer compile --json` prints them."""

import dataclasses
from typing import Any

from trainer.config import load

FIGURES: dict[str, Any] = {
    "topology": "v6e-16",
    "accelerator": "v6e",
    "chips": 16,
    "mesh": {"seed": 1, "data": 1, "fsdp": 16, "tensor": 1},
    "config": dataclasses.asdict(load("configs/cube-single-play.toml", task=1)),
    "rows_on_chips": 1000,
    "memory": {"total": 8e9},
    "memory_share": 0.25,
    "traffic": [{"sent_bytes": 2e6}, {"sent_bytes": 3e6}],
    "kernels": 1700.0,
    "estimated_cycles": 2.7e6,
    "least_ms": {"arithmetic": 0.1, "links": 0.2},
    "bound": "links",
}
