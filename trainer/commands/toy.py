"""``toy``: the 4x4 grid."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console


@dataclass(frozen=True)
class Toy:
    """Solve the 4x4 grid of the paper's section 3, by table and by network.

    Attributes:
        out: Folder for toy.png and toy.json.
        seed: Of the networks.
    """

    out: Path
    seed: int = 0

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        from trainer.toy.run import run_toy

        run_toy(self.out, seed=self.seed, console=console)
        return 0
