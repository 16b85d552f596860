"""``launch evaluate``: rollouts on CPUs, here, on GKE or on a cloud by SkyPilot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from infra.checks import names
from infra.errors import LaunchError
from infra.submission import Submission, launch, make_command, read_version, to_yaml
from infra.targets import jobset, kubernetes, skypilot
from pipeline.output import Output


@dataclass(frozen=True)
class Evaluate:
    """Rolls out a run's checkpoints; options after -- go to `trainer evaluate`.

    Attributes:
        target: Place to run at; gke is a Job on CPUs.
        run_folder: Folder of the run.
        episodes: Episodes of each checkpoint and training seed.
        cpus: Number of cores; each runs one environment process.
        memory_gb: Memory of the machine in GB.
        image: Image of the pod, from infra/containers/trainer-cuda.Dockerfile.
        name: Name of the job; the name of the run and -evaluate by default.
        region: Region of the cluster and the bucket; for sky such as gcp/europe-west4.
        namespace: Kubernetes namespace.
        account: Kubernetes service account.
        dry_run: Print what would be submitted, and stop.
    """

    target: Literal["local", "gke", "sky"]
    run_folder: Annotated[str, tyro.conf.arg(name="run")]
    episodes: int = 50
    cpus: int = 8
    memory_gb: int = 16
    image: str | None = None
    name: str | None = None
    region: str | None = None
    namespace: str = "default"
    account: str = "vast-trainer"
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Starts the evaluation, or prints what would be submitted."""
        return launch(self.make_submission(more), output, dry_run=self.dry_run)

    def make_submission(self, arguments: Sequence[str]) -> Submission:
        """Builds the submission.

        Args:
            arguments: Further options of `trainer evaluate`.

        Returns:
            The submission.

        Raises:
            LaunchError: If the evaluation cannot succeed.
        """
        if min(self.episodes, self.cpus, self.memory_gb) < 1:
            raise LaunchError(
                "--episodes, --cpus and --memory-gb: expected at least 1 each, got "
                f"{self.episodes}, {self.cpus} and {self.memory_gb}; raise the smallest"
            )
        # MuJoCo runs on CPUs, and a policy's forward pass is small beside its steps: no
        # target asks for an accelerator.
        options = (
            "--episodes",
            str(self.episodes),
            "--workers",
            str(self.cpus),
            *arguments,
        )
        costs = (
            f"1 machine of {self.cpus} cores and {self.memory_gb} GB, no accelerator",
            "hours not known: no rate of evaluation was measured",
        )
        if self.target == "local":
            return Submission(
                command=make_command("trainer", "evaluate", self.run_folder, *options),
                document=None,
                costs=costs,
                writes=names.select_buckets(self.run_folder),
            )
        run = names.parse_run(self.run_folder)
        name = self.name or f"{run.name}-evaluate"
        if self.target == "sky":
            task = skypilot.SkyTask(
                name=names.check_job_name(name, longest=63),
                region=self.region,
                command=("python", "-m", "trainer", "evaluate", str(run), *options),
            )
            return Submission(
                command=skypilot.LAUNCH,
                document=to_yaml(
                    [
                        skypilot.make_evaluation_task(
                            task, cpus=self.cpus, memory_gb=self.memory_gb
                        )
                    ]
                ),
                costs=costs,
                writes=(self.run_folder,),
                region=skypilot.find_google_region(self.region),
            )
        evaluation = jobset.EvaluationJob(
            name=name,
            namespace=self.namespace,
            account=self.account,
            image=names.check_image(self.image, version=read_version()),
            region=names.check_region(self.region),
            arguments=(str(run), *options),
            cpus=self.cpus,
            memory=f"{self.memory_gb}Gi",
        )
        return Submission(
            command=kubernetes.APPLY,
            document=to_yaml(jobset.make_evaluation_documents(evaluation)),
            costs=costs,
            writes=(self.run_folder,),
            region=self.region,
            find_earlier=kubernetes.make_finder(
                kubernetes.JOB,
                name=name,
                namespace=self.namespace,
                folder=str(run),
            ),
        )
