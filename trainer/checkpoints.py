"""Checkpoints: Orbax, asynchronous, every step committed in one atomic rename.

Four items a step: ``params`` (enough to act), ``train`` (targets, optimiser, step,
keys), ``data`` (Grain's iterator) and ``run`` (what run it is of).
"""

from pathlib import Path
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp

from pipeline.store.errors import DataFormatError
from trainer.agents.base import Agent, AgentState
from trainer.nn.networks import Params
from trainer.run import CHECKPOINTS, Run
from trainer.state import TrainState

_PARAMS, _TRAIN, _DATA, _RUN = "params", "train", "data", "run"


class Checkpoints:
    """The checkpoints of one run's folder.

    Args:
        folder: RUN.
        keep: Latest steps kept; None keeps all.
        writable: Whether this process writes them.
    """

    def __init__(
        self, folder: Path, *, keep: int | None = None, writable: bool = False
    ) -> None:
        self.folder = folder / CHECKPOINTS
        if not writable and not self.folder.is_dir():
            raise DataFormatError(
                f"{self.folder}: expected checkpoints of a run, found no such folder; "
                "has training reached its first checkpoint?"
            )
        self._manager = ocp.CheckpointManager(
            self.folder.absolute(),
            item_names=(_PARAMS, _TRAIN, _DATA, _RUN),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, create=writable, read_only=not writable
            ),
        )

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """Last committed step, or None. A half-written step is not one."""
        return max(self.steps(), default=None)

    def save(
        self, step: int, state: TrainState, data: grain.DatasetIterator, run: Run
    ) -> None:
        """Starts saving a step; returns once the devices' values are copied.

        Args:
            step: Updates done.
            state: After them.
            data: Standing at the next call's batches.
            run: What run it is of.
        """
        params, train = _split(state)
        self._manager.save(
            step,
            args=ocp.args.Composite(
                **{
                    _PARAMS: ocp.args.StandardSave(params),
                    _TRAIN: ocp.args.StandardSave(train),
                    _DATA: grain.checkpoint.CheckpointSave(data),
                    _RUN: ocp.args.JsonSave(run.to_json()),
                }
            ),
        )

    def restore(
        self, step: int, like: TrainState, data: grain.DatasetIterator
    ) -> TrainState:
        """Restores a step to go on from.

        Args:
            step: A committed step.
            like: A state of the same shapes, laid out as wanted.
            data: Iterator to set to the saved place.

        Returns:
            The state.
        """
        params, train = (jax.tree.map(_abstract, tree) for tree in _split(like))
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(
                **{
                    _PARAMS: ocp.args.StandardRestore(params),
                    _TRAIN: ocp.args.StandardRestore(train),
                    _DATA: grain.checkpoint.CheckpointRestore(data),
                }
            ),
        )
        return _join(restored[_PARAMS], restored[_TRAIN])

    def read_run(self, step: int) -> Run:
        """Reads what run a step is of."""
        value = self._manager.restore(
            step, args=ocp.args.Composite(**{_RUN: ocp.args.JsonRestore()})
        )
        return Run.from_json(value[_RUN], where=f"{self.folder}/{step}/{_RUN}")

    def restore_params(self, step: int, agent: Agent, *, seeds: int) -> Params:
        """Restores the parameters of all seeds, on this process's first device.

        Args:
            step: A committed step.
            agent: Of the run.
            seeds: Q of the run.

        Returns:
            Parameters with a leading axis ``Q``.
        """
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        one = jax.eval_shape(agent.init, jax.random.key(0)).params
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (seeds, *leaf.shape), leaf.dtype, sharding=device
            ),
            one,
        )
        restored = self._manager.restore(
            step, args=ocp.args.Composite(**{_PARAMS: ocp.args.StandardRestore(target)})
        )
        params: Params = restored[_PARAMS]
        return params

    def wait(self) -> None:
        """Waits until every started save is committed."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and stops the background threads."""
        self._manager.close()

    def check_run(self, step: int, run: Run) -> None:
        """Refuses a step that was saved by another run.

        Args:
            step: A committed step.
            run: That wants to go on from it.

        Raises:
            DataFormatError: If data, hyperparameters, batch or seeds differ.
        """
        saved = self.read_run(step)
        if saved.fingerprint != run.fingerprint:
            raise DataFormatError(
                f"{self.folder}/{step}: was trained on data {saved.fingerprint}, and "
                f"the store now is {run.fingerprint}; train into another folder"
            )
        differing = [
            f"{name}: {before!r} before, {now!r} now"
            for (name, before), now in zip(
                _flat(saved.config.agent),
                dict(_flat(run.config.agent)).values(),
                strict=False,
            )
            if before != now
        ]
        fixed = ("batch_size", "seed", "seeds", "updates_per_call")
        for name in fixed:
            before, now = (getattr(one.config.trainer, name) for one in (saved, run))
            if before != now:
                differing.append(f"trainer.{name}: {before} before, {now} now")
        if differing:
            raise DataFormatError(
                f"{self.folder}/{step}: is of another run than the one asked for "
                f"({'; '.join(differing)}); train into another folder"
            )


def _flat(config: Any) -> list[tuple[str, Any]]:
    return [(f"agent.{name}", value) for name, value in vars(config).items()]


def _split(state: TrainState) -> tuple[Params, dict[str, Any]]:
    agent = state.agent
    return agent.params, {
        "targets": agent.targets,
        "opt_state": agent.opt_state,
        "step": agent.step,
        "keys": state.keys,
    }


def _join(params: Params, train: dict[str, Any]) -> TrainState:
    return TrainState(
        AgentState(params, train["targets"], train["opt_state"], train["step"]),
        train["keys"],
    )


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
