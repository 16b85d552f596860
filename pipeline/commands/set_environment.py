"""``set-environment``: names the environment in which policies are evaluated."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from pipeline.commands.arguments import StorePath, describe
from pipeline.output import Output, say
from pipeline.store.errors import UsageError


@dataclass(frozen=True)
class SetEnvironment:
    """Names the environment to evaluate in, if it agrees with the store's data.

    The command makes the environment and compares its spaces with the data: sizes,
    bounds, kinds of number, and the order of a dictionary's entries. Rows stay as they
    are.

    Attributes:
        store: Folder of the store.
        environment: ID of the environment, or MODULE:ID to import the module that
            registers it. The store keeps only the ID, so the module has to be named
            again for an evaluation.
        environment_arguments: Arguments of the environment, such as size=3.
        reference_scores: Returns LOW and HIGH that count as normalised scores of 0 and
            100; in D4RL, those of a random policy and of an expert.
        success_timing: State that a row's reward belongs to: pre for the row's own
            state, post for the state that its action leads to.
    """

    store: StorePath
    environment: Annotated[
        str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ENVIRONMENT]")
    ] = None
    environment_arguments: tuple[str, ...] = ()
    reference_scores: tuple[float, float] | None = None
    success_timing: Literal["pre", "post"] | None = None

    def execute(self, output: Output) -> int:
        """Makes the environment, compares its spaces, and changes the manifest."""
        from pipeline.assembly.environment import set_environment
        from pipeline.domains.environments import (
            check_time_limit,
            ignore_known_warnings,
            make_named_environment,
            parse_environment,
        )
        from pipeline.domains.reference_scores import check_reference_scores
        from pipeline.domains.spaces import check_store, read_spaces
        from pipeline.store.reader import Store

        given = (self.environment, self.reference_scores, self.success_timing)
        if all(option is None for option in given):
            raise UsageError(
                "expected an environment, --reference-scores or --success-timing to "
                "set, got none; give at least one of them"
            )
        if self.environment is None and self.environment_arguments:
            raise UsageError(
                "--environment-arguments: expected an environment, too; name it after "
                "the store"
            )
        scores = self.reference_scores and check_reference_scores(
            *self.reference_scores
        )
        store, spec = Store(self.store), None
        if self.environment is not None:
            # A wrong environment is found here, before the manifest changes, rather
            # than by an evaluation after days of training.
            spec = parse_environment(self.environment, self.environment_arguments)
            environment = make_named_environment(spec)
            check_time_limit(environment, spec.environment_id)
            with ignore_known_warnings():
                spaces = read_spaces(environment)
                environment.close()
            for warning in check_store(
                store.manifest, spaces, environment=spec.environment_id
            ):
                say(output.progress, f"warning: {warning}", style="yellow")
        changed = set_environment(
            store,
            spec,
            reference_scores=scores,
            success_timing=self.success_timing,
            command=describe(
                "set-environment" + (f" {spec.environment_id}" if spec else ""),
                environment_arguments=self.environment_arguments,
                reference_scores=self.reference_scores,
                success_timing=self.success_timing,
            ),
        )
        if changed is None:
            say(output.results, f"{self.store}: nothing to change")
            return 0
        scores = changed.reference_scores
        say(
            output.results,
            f"{self.store}: evaluated in {changed.environment_id}"
            + (f", reference scores {scores[0]:g} and {scores[1]:g}" if scores else ""),
        )
        return 0
