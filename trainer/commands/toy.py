"""``toy``: the paper's 4x4 grid and a chain, which can be solved exactly."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pipeline.output import Output, say


@dataclass(frozen=True)
class Toy:
    """Solve the 4x4 grid of the paper's section 3, and a chain, by table and network.

    Attributes:
        out: Folder for toy.png, chain.png and toy.json.
        seed: Seed of the networks.
    """

    local_paths: ClassVar[tuple[str, ...]] = ("out",)

    out: Path
    seed: int = 0

    def execute(self, output: Output) -> int:
        """Solves the grid and the chain, prints the results and draws them."""
        from etils import epath

        from trainer.runs.folder import check_writable
        from trainer.toy.run import run_toy

        check_writable(epath.Path(self.out))
        result = run_toy(self.out, seed=self.seed, console=output.progress)
        for line in result.lines():
            say(output.results, line)
        files = (self.out / name for name in ("toy.png", "chain.png", "toy.json"))
        say(output.results, f"wrote {', '.join(map(str, files))}")
        return 0
