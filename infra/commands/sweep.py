"""``launch sweep``: launches a job for every cell of a sweep that is not finished."""

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from infra.checks import names
from infra.commands.evaluate import Evaluate
from infra.commands.train import Train
from infra.errors import LaunchError
from infra.estimates.machines import find_accelerator, make_slice
from infra.submission import Submission, ask, launch, make_command
from infra.targets import jobset, skypilot
from pipeline.output import Output, say
from pipeline.store.units import format_duration

if TYPE_CHECKING:
    from trainer.sweep.cells import Cell

# State of a cell, as ``sweep --dry-run --json`` prints it.
State = dict[str, Any]
_NEW: State = {"stage": "new"}


@dataclass(frozen=True)
class Sweep:
    """Launches a job for every cell of a sweep that is not finished.

    The job of a cell trains it, or evaluates it once training is done. The same
    command, repeated later, launches the remaining jobs; jobs that still run are left
    alone. A dry run does not ask which these are.

    Attributes:
        sweep: File of the sweep, such as configs/sweeps/table-1.toml, or the name of a
            shipped one, such as table-1; its store and out must be in buckets.
        target: Place to run at; gke is GPUs on GKE, tpu slices of TPUs there, and
            evaluations run on CPUs.
        accelerator: Kind of chips to train a cell on.
        chips: Number of chips of a cell.
        out: Folder of the runs in place of the one that the file names.
        store: Store of a data set in place of the one that the file names; {dataset}
            stands for the data set's name.
        only: Pattern for the names of cells to launch, such as 'cube-*-fql-*'.
        image: Image of the pods, as for `launch train`.
        evaluation_image: Image of pods that evaluate; that of training by default.
        region: Region of the cluster and the bucket; for sky such as gcp/europe-west4.
        namespace: Kubernetes namespace.
        account: Kubernetes service account.
        spot: Use machines that the provider may take away.
        updates_per_s: Rate measured on such chips, to estimate hours with.
        cpus: Number of cores of an evaluation.
        compile: Compile each training first, as `launch train` does.
        dry_run: Print what would be submitted, with the totals, and stop.
    """

    sweep: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SWEEP")]
    target: Literal["gke", "tpu", "sky"]
    accelerator: str
    chips: int
    out: str | None = None
    store: str | None = None
    only: str = "*"
    image: str | None = None
    evaluation_image: str | None = None
    region: str | None = None
    namespace: str = "default"
    account: str = "vast-trainer"
    spot: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    updates_per_s: float | None = None
    cpus: int = 8
    compile: bool = True
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Launches the cells one after another, or prints what would be launched.

        Raises:
            LaunchError: If a cell cannot be launched. Cells before it are launched
                already; the same command continues after them.
        """
        from trainer.sweep.cells import make_cells, read_sweep

        if more:
            raise LaunchError(
                f"launch sweep: expected nothing after --, got {' '.join(more)}; "
                "put overrides into the sweep's file"
            )
        sweep = read_sweep(self.sweep, out=self.out, store=self.store)
        cells = make_cells(sweep, only=self.only)
        states = self._read_states(output)
        # All submissions are built before one is launched, so that an error in any cell
        # is reported before machines are paid for.
        jobs = [
            (cell, job)
            for cell in cells
            if (job := self._make_submission(cell, states.get(cell.name, _NEW)))
            is not None
        ]
        for line in self._totals(cells, states, [cell for cell, _ in jobs]):
            say(output.progress, f"# {line}")
        # SkyPilot takes two jobs of one name, which would train in one folder.
        asks = self.target == "sky" and not self.dry_run and bool(jobs)
        active = skypilot.list_active_jobs() if asks else set()
        for number, (cell, job) in enumerate(jobs):
            say(output.progress, f"# [{number + 1}/{len(jobs)}] {cell.name}")
            running = active.intersection(self._name_jobs(cell))
            if running:
                say(output.progress, f"# left alone: job {running.pop()} has not ended")
                continue
            code = launch(job, output, dry_run=self.dry_run)
            if code != 0:
                return code
        return 0

    def _make_submission(self, cell: "Cell", state: State) -> Submission | None:
        """Builds the job that a cell lacks; None for a finished cell."""
        match state["stage"]:
            case "finished":
                return None
            case "trained":
                return self._make_evaluation(cell, state["missing"])
            case "differs":
                raise LaunchError(
                    f"{cell.folder}: expected nothing, or a run of these settings, got "
                    f"one of other settings ({state['difference']}); give another "
                    "`out`, or move the run away"
                )
        environment = cell.environment_options
        return self._make_training(cell).make_submission(
            ("--agent", cell.agent, *environment, *cell.overrides)
        )

    def _name_jobs(self, cell: "Cell") -> tuple[str, str]:
        """Names the jobs that train and evaluate a cell, the same on every target."""
        # JobSets have the shortest limit, since the names of their pods are host names.
        kind: Literal["gpu", "tpu"] = "tpu" if self.target == "tpu" else "gpu"
        chips = make_slice(find_accelerator(self.accelerator, kind), self.chips)
        longest = jobset.count_set_name(chips.hosts)
        name = names.make_job_name(cell.name, longest=longest)
        return name, f"{name}-evaluate"

    def _make_training(self, cell: "Cell") -> Train:
        if cell.file is None:
            raise LaunchError(
                f"{cell.name}: expected a configuration to send with the job, got none "
                f"for {cell.config.dataset}; write one and name it in the sweep's "
                "`config`"
            )
        return Train(
            config=Path(cell.file),
            target=self.target,
            store=cell.store,
            task=cell.task,
            out=str(cell.folder),
            name=self._name_jobs(cell)[0],
            accelerator=self.accelerator,
            chips=self.chips,
            image=self.image,
            region=self.region,
            namespace=self.namespace,
            account=self.account,
            spot=self.spot,
            updates_per_s=self.updates_per_s,
            compile=self.compile,
        )

    def _make_evaluation(self, cell: "Cell", steps: Sequence[int]) -> Submission:
        evaluation = Evaluate(
            target="sky" if self.target == "sky" else "gke",
            run_folder=str(cell.folder),
            name=self._name_jobs(cell)[1],
            episodes=cell.evaluation.episodes,
            cpus=self.cpus,
            image=self.evaluation_image or self.image,
            region=self.region,
            namespace=self.namespace,
            account=self.account,
        )
        return evaluation.make_submission(cell.make_evaluation_options(steps))

    def _read_states(self, output: Output) -> dict[str, State]:
        """Reads the states of cells; a dry run may go on without them."""
        try:
            return ask_states(self.sweep, self.only, self.out)
        except LaunchError as error:
            if not self.dry_run:
                raise
            say(output.progress, f"# {error}; all cells are taken for new")
            return {}

    def _totals(
        self, cells: Sequence["Cell"], states: dict[str, State], left: Sequence["Cell"]
    ) -> list[str]:
        """Sums up cells, training seeds, chips and hours."""
        stages = {name: state["stage"] for name, state in states.items()}
        finished = sum(stages.get(cell.name) == "finished" for cell in cells)
        training = [cell for cell in left if stages.get(cell.name) != "trained"]
        seeds = sum(len(cell.seeds) for cell in cells)
        lines = [
            f"{len(cells)} cells with {seeds} training seeds: {finished} finished, "
            f"{len(training)} to train, {len(left) - len(training)} to evaluate"
        ]
        if not training:
            return lines
        total_s, unknown = 0.0, Counter[str]()
        for cell in training:
            train = self._make_training(cell)
            rate = train.find_rate(cell.config, train.find_chips())
            if rate is None:
                unknown[cell.method] += 1
            else:
                total_s += cell.config.trainer.steps / rate[0]
        machines = f"{len(training) * self.chips:,} {self.accelerator} chips at once"
        if total_s:
            hours = total_s / 3600 * self.chips
            lines.append(
                f"{machines}; {format_duration(total_s)} of training one after "
                f"another, {hours:,.1f} chip hours, whatever was trained already"
            )
        else:
            lines.append(machines)
        if unknown:
            without = ", ".join(f"{count} of {name}" for name, count in unknown.items())
            lines.append(
                f"no hours for cells of which no rate was measured ({without}); give "
                "--updates-per-s"
            )
        return lines


def ask_states(sweep: Path, only: str, out: str | None) -> dict[str, State]:
    """Asks the trainer for the state of each cell, because infra cannot read runs.

    Args:
        sweep: File of the sweep.
        only: Pattern for the names of cells.
        out: Folder of the runs in place of the file's.

    Returns:
        States by name, as ``sweep --dry-run --json`` prints them.

    Raises:
        LaunchError: If the trainer is not installed, or the runs cannot be read.
    """
    options = ("--only", only, *(() if out is None else ("--out", out)))
    listed = ("--dry-run", "--json")
    command = make_command("trainer", "sweep", str(sweep), *options, *listed)
    asked, said = ask(command)
    if asked.returncode != 0:
        raise LaunchError(
            f"{sweep}: the states of its cells cannot be read; run "
            f"`{shlex.join(command)}` to see why, it ended with exit code "
            f"{asked.returncode}: {said}"
        )
    states: dict[str, State] = json.loads(asked.stdout)
    return states
