"""``launch train``: trains here, on GPUs or TPUs of GKE, or on a cloud by SkyPilot."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from infra.checks import names
from infra.errors import LaunchError
from infra.estimates.machines import Slice, find_accelerator, make_slice
from infra.estimates.measured import MEASURED, find_update_rate
from infra.submission import Submission, launch, make_command, read_version, to_yaml
from infra.targets import jobset, kubernetes, skypilot
from pipeline import parsing
from pipeline.output import Output
from pipeline.store.units import format_duration
from trainer.costs import published
from trainer.parallel.mesh_shape import compute_mesh_sizes

if TYPE_CHECKING:
    from trainer.config import Config, Resolved

# Seconds that GKE leaves a pod when it takes a spot node away, unless the node pool is
# set to give more (up to 120 s); see GKE's page "Spot VMs".
_SPOT_GRACE_S = 15
_PROG = "python -m infra launch train ... --"


@dataclass(frozen=True)
class Train:
    """Trains one task of a store; options after -- go to `python -m trainer train`.

    Options of the trainer are overrides of the configuration, such as --agent.width
    1024, or --agent NAME; the settings of that agent are sent with the job.

    Attributes:
        config: Configuration file, such as configs/cube-single-play.toml.
        target: Place to train at; gke is GPUs on GKE, tpu a slice of TPUs there.
        store: Trajectory store.
        task: Task number.
        out: Folder of the run.
        accelerator: Kind of chips: a100-80gb, h100, h200; v5e, v5p, v6e.
        chips: Number of chips.
        image: Image of the pods, from infra/containers/trainer-cuda.Dockerfile or
            trainer-tpu.Dockerfile.
        name: Name of the job; the last part of out by default.
        region: Region of the cluster and the bucket; for sky such as gcp/europe-west4.
        namespace: Kubernetes namespace.
        account: Kubernetes service account.
        spot: Use machines that the provider may take away.
        max_restarts: Restarts after errors; restarts after exit code 75 do not count.
        grace_s: Seconds to save in after the signal to stop.
        updates_per_s: Rate measured on such chips, to estimate hours with; a rate of
            this repository's by default, if it has one.
        compiled: Figures of `python -m trainer compile --json` for this run, for gke
            and tpu; without them, the run is compiled before it is launched.
        compile: Compile the run before it is launched, for gke and tpu; a dry run
            compiles nothing.
        dry_run: Print what would be submitted, and stop.
    """

    config: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
    target: Literal["local", "gke", "tpu", "sky"]
    store: str
    task: int
    out: str
    accelerator: str | None = None
    chips: int | None = None
    image: str | None = None
    name: str | None = None
    region: str | None = None
    namespace: str = "default"
    account: str = "vast-trainer"
    spot: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    max_restarts: int = 10
    grace_s: int = 120
    updates_per_s: float | None = None
    compiled: Path | None = None
    compile: bool = True
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Starts the training, or prints what would be submitted."""
        return launch(self.make_submission(more), output, dry_run=self.dry_run)

    def make_submission(self, arguments: Sequence[str]) -> Submission:
        """Builds the submission.

        Args:
            arguments: Options of the trainer: overrides of the configuration, or an
                agent.

        Returns:
            The submission.

        Raises:
            LaunchError: If the training cannot succeed.
            UsageError: If the configuration is wrong.
        """
        # Resolved as the trainer will resolve it, so that its errors come before any
        # machine is paid for.
        resolved = _resolve(self.config, self.task, arguments)
        config = resolved.config
        if min(self.max_restarts, self.grace_s) < 0:
            raise LaunchError(
                "--max-restarts and --grace-s: expected at least 0 each, got "
                f"{self.max_restarts} and {self.grace_s}; raise them"
            )
        if self.updates_per_s is not None and not self.updates_per_s > 0:
            raise LaunchError(
                "--updates-per-s: expected a rate above 0, got "
                f"{self.updates_per_s:g}; give the rate of a run on such chips"
            )
        options = ("--store", self.store, "--task", str(self.task), "--out")
        if self.target == "local":
            given = (str(self.config), *options, self.out, *arguments)
            return Submission(
                command=make_command("trainer", "train", *given),
                document=None,
                costs=("this machine", self._describe_hours(config, None)),
                reads=names.select_buckets(self.store),
                writes=names.select_buckets(self.out),
            )
        chips = self.find_chips()
        # The trainer would refuse the mesh, too, but only once all machines run.
        mesh = compute_mesh_sizes(
            config.mesh,
            seeds=config.trainer.seeds,
            batch_size=config.trainer.batch_size,
            microbatches=config.trainer.microbatches,
            width=config.agent.width,
            devices=chips.chips,
        )
        names.parse_bucket_path(self.store)
        run = names.parse_run(self.out)
        trained = (*options, str(run), *arguments)
        costs = self._describe_cost(config, chips)
        if self.compiled is not None:
            from infra.commands import compiling

            plain = dataclasses.asdict(config)
            fits = compiling.check_given(self.compiled, plain, chips, mesh)
            costs = (*costs, fits)
        if self.target == "sky":
            command = ("python", "-m", "trainer", "train", skypilot.CONFIG, *trained)
            task = skypilot.make_training_task(
                skypilot.SkyTask(
                    name=names.check_job_name(self.name or run.name, longest=63),
                    region=self.region,
                    command=command,
                ),
                chips,
                files=_list_files(skypilot.CONFIG, resolved),
                spot=self.spot,
                max_restarts=self.max_restarts,
            )
            return Submission(
                command=skypilot.LAUNCH,
                document=to_yaml([task]),
                costs=costs,
                reads=(self.store,),
                writes=(self.out,),
                region=skypilot.find_google_region(self.region),
            )
        training = jobset.Training(
            name=self.name or run.name,
            namespace=self.namespace,
            account=self.account,
            image=names.check_image(self.image, version=read_version()),
            region=names.check_region(self.region),
            files={
                target: source.read_text()
                for target, source in _list_files(jobset.CONFIG_FILE, resolved).items()
            },
            arguments=trained,
            chips=chips,
            spot=self.spot,
            max_restarts=self.max_restarts,
            grace_s=self.grace_s,
        )
        return Submission(
            command=kubernetes.APPLY,
            document=to_yaml(jobset.make_training_documents(training)),
            costs=costs,
            reads=(self.store,),
            writes=(self.out,),
            region=self.region,
            find_earlier=kubernetes.make_finder(
                kubernetes.JOB_SET,
                name=training.name,
                namespace=training.namespace,
                folder=str(run),
            ),
            last_check=functools.partial(self._compile, chips, arguments)
            if self.compile and self.compiled is None
            else None,
        )

    def find_chips(self) -> Slice:
        """Finds the machines to launch on.

        Returns:
            The chips and their hosts.

        Raises:
            LaunchError: If no such machines exist, or the options are missing.
        """
        if self.accelerator is None or self.chips is None:
            raise LaunchError(
                f"--accelerator and --chips: expected with --target {self.target}, got "
                f"{self.accelerator} and {self.chips}; give both"
            )
        kind: Literal["gpu", "tpu"] = "tpu" if self.target == "tpu" else "gpu"
        return make_slice(find_accelerator(self.accelerator, kind), self.chips)

    def _describe_cost(self, config: "Config", chips: Slice) -> tuple[str, ...]:
        spot = " that can be taken away" if self.spot else ""
        machine = (
            f"machine of {chips.chips_per_host}, on any cloud,"
            if self.target == "sky"
            else chips.machine_type
        )
        lines = [
            f"{chips.hosts} x {machine}{spot}: {chips.chips} "
            f"{chips.accelerator.name} chips"
            + (f", topology {chips.topology}" if chips.topology else ""),
            self._describe_hours(config, chips),
        ]
        if self.spot and self.target != "sky":
            lines.append(
                f"a spot node gives {_SPOT_GRACE_S} s to save, whatever --grace-s "
                "says, unless its node pool is set to give more; save often "
                "(trainer.checkpoint_every)"
            )
        return tuple(lines)

    def _compile(self, chips: Slice, arguments: Sequence[str]) -> str:
        """Compiles the run; returns a line about its memory, or refuses the run."""
        from infra.commands import compiling

        passed, overrides = _parse(arguments)
        agent = ("--agent", passed.agent) if passed.agent else ()
        return compiling.compile_first(
            self.config, (*agent, *overrides), chips, task=self.task
        )

    def find_rate(
        self, config: "Config", chips: Slice | None
    ) -> tuple[float, str] | None:
        """Finds the rate of such a run, as given or as measured.

        Args:
            config: Configuration of the run.
            chips: Chips to launch on; None for the CPU of this machine.

        Returns:
            Updates per second and the source of the number, or None if none is known.
        """
        if self.updates_per_s is not None:
            return self.updates_per_s, "--updates-per-s"
        measured = find_update_rate(
            MEASURED,
            platform=chips.accelerator.name if chips else "cpu",
            chips=chips.chips if chips else None,
            agent=config.agent,
            batch_size=config.trainer.batch_size,
            seeds=config.trainer.seeds,
        )
        return None if measured is None else (measured.updates_per_s, measured.source)

    def _describe_hours(self, config: "Config", chips: Slice | None) -> str:
        """Estimates the hours from a measured rate, or else bounds them from below."""
        trainer = config.trainer
        known = self.find_rate(config, chips)
        if known is not None:
            rate, source = known
            taken_s = trainer.steps / rate
            chip_hours = taken_s / 3600 * chips.chips if chips else 0.0
            used = f", {chip_hours:,.1f} chip hours" if chips else ""
            return (
                f"{format_duration(taken_s)}{used} for {trainer.steps:,} updates at "
                f"{rate:g} updates/s ({source})"
            )
        flow_steps = getattr(config.agent, "flow_steps", None)
        unknown = (
            f"hours not known: no measured rate of {config.agent.name} at width "
            f"{config.agent.width}, depth {config.agent.depth}, "
            + (f"{flow_steps} flow steps, " if flow_steps else "")
            + f"{config.agent.precision}, batch {trainer.batch_size}, {trainer.seeds} "
            "seed(s); give --updates-per-s, updates_per_s of metrics.jsonl after a "
            "minute there"
        )
        from infra.estimates import scale
        from trainer.agents.vast_config import VASTConfig
        from trainer.costs.call_memory import Shape

        data = published.DATASETS.get(config.dataset)
        if chips is None or data is None or not isinstance(config.agent, VASTConfig):
            return unknown
        shape = Shape(
            config.agent,
            batch_size=trainer.batch_size,
            observation_dim=data.observation_dim,
            action_dim=data.action_dim,
        )
        # Arithmetic alone is a bound for every mesh. Time on links is not: a mesh that
        # gives each seed its own chip sends nothing.
        least_s = trainer.seeds * scale.arithmetic_s(
            shape, chips.accelerator.chip, chips=chips.chips
        )
        least = format_duration(trainer.steps * least_s)
        return f"{unknown}; at the very least {least}, by arithmetic alone"


def _list_files(config: str, resolved: "Resolved") -> dict[str, Path]:
    """Lists the files that are sent with a job.

    Args:
        config: Path of the configuration file on the machines of the job.
        resolved: The configuration, with the files here that it was read from.

    Returns:
        Files here, by their paths on the machines of the job. The file of an agent's
        own settings lies beside the configuration, where the trainer looks for it.
    """
    from trainer.shipped import BASELINES

    assert resolved.file is not None, "a launch names its configuration"
    baseline = resolved.baseline
    if baseline is None:
        return {config: resolved.file}
    beside = Path(config).parent / BASELINES / baseline.name
    return {config: resolved.file, str(beside): baseline}


@dataclass(frozen=True)
class _Passed:
    """Options of ``python -m trainer train`` that are no part of the configuration.

    Attributes:
        agent: Method to train.
        environment: Environment to evaluate in.
        environment_arguments: Arguments of the environment.
        profile: Folder for a trace.
        take_over: Continue in the place of another process.
    """

    # Not the trainer's own command, whose other options a launch has itself. A test
    # makes sure that no option of the trainer is missing here.
    agent: str | None = None
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    profile: str | None = None
    take_over: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


def _resolve(path: Path, task: int, arguments: Sequence[str]) -> "Resolved":
    """Resolves the configuration as the job will, and refuses wrong overrides."""
    from trainer import config as configuration

    passed, overrides = _parse(arguments)
    return configuration.resolve(
        path, task=task, agent=passed.agent, overrides=overrides, prog=_PROG
    )


def _parse(arguments: Sequence[str]) -> tuple[_Passed, list[str]]:
    """Splits arguments into options of the trainer and overrides."""
    return parsing.parse_known(_Passed, arguments, prog=_PROG)
