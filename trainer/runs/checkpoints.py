"""Checkpoints: Orbax, asynchronous, every step committed at once.

On disk that is a rename; on gs:// the last object of a step says that it is whole.

Four items a step: ``params`` (enough to act), ``train`` (targets, optimiser, step,
keys), ``data`` (the state of Grain's iterator) and ``run`` (what run it is of).
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from textwrap import shorten
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp
from etils import epath

from pipeline.store.errors import DataFormatError
from pipeline.store.files import is_remote
from trainer.agents.base import Agent, AgentState
from trainer.config import differences
from trainer.errors import StorageError
from trainer.nn.networks import Params
from trainer.runs.folder import CHECKPOINTS, FolderLike, absolute, open_folder
from trainer.runs.run import Run
from trainer.runs.snapshot import Snapshot
from trainer.step.state import TrainState

_PARAMS, _TRAIN, _DATA, _RUN = "params", "train", "data", "run"
# The items of a step that hold arrays.
ARRAY_ITEMS = (_PARAMS, _TRAIN)
# Differences listed of another architecture.
_SHOWN = 12
# Folder that steps are deleted in.
_DELETED = "deleted"
# Characters of what a library says of an error; TensorStore adds all of its settings.
_SAID = 200
# Looks at a folder whose steps are deleted meanwhile, and seconds between two.
_LOOKS, _LOOK_S = 5, 0.2


class Checkpoints:
    """The checkpoints of one run's folder.

    Args:
        folder: RUN, a local path or ``gs://bucket/path``.
        keep: Latest steps kept; None keeps all.
        keep_every: Steps that are multiples of it are kept for good.
        writable: Whether this process writes them.
    """

    def __init__(
        self,
        folder: FolderLike,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        writable: bool = False,
    ) -> None:
        self.folder = open_folder(folder) / CHECKPOINTS
        self._failed = False
        self._snapshot: Snapshot | None = None
        if not writable and not self.folder.is_dir():
            raise DataFormatError(
                f"{self.folder}: expected checkpoints of a run, found no such folder; "
                "has training reached its first checkpoint?"
            )
        moves = writable and not is_remote(os.fspath(self.folder))
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every,
            create=writable,
            read_only=not writable,
            # A killed save's, as large as a whole one: its step may not come again.
            cleanup_tmp_directories=writable,
            # By a rename: nothing says of a step that half of its files are gone.
            # Buckets have no rename.
            todelete_subdir=_DELETED if moves else None,
        )
        self._manager = _open(absolute(self.folder), options)
        self._deletes = moves and jax.process_index() == 0

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """Last committed step, or None. A half-written step is not one."""
        return max(self.steps(), default=None)

    def prepare(self, state: TrainState) -> Snapshot:
        """Gets the memory that saves of such a state need, so that none waits for it.

        Args:
            state: As it will be saved.

        Returns:
            What saves copy the state with.
        """
        if self._snapshot is None:
            self._snapshot = Snapshot(state)
        return self._snapshot

    def save(
        self, step: int, state: TrainState, data: grain.DatasetIterator, run: Run
    ) -> None:
        """Starts saving a step; returns once the state's values are copied.

        Args:
            step: Updates done.
            state: After them.
            data: Standing at the next call's batches.
            run: What run it is of.

        Raises:
            StorageError: If this step, or the one before, cannot be written.
        """
        self.wait()  # The last save may still read the snapshot.
        if self._deletes:  # Before more room is taken; the loop need not wait for it.
            threading.Thread(target=_empty, args=(self.folder / _DELETED,)).start()
        params, train = _split(self.prepare(state).take(state))
        items = {
            _PARAMS: ocp.args.PyTreeSave(params),
            _TRAIN: ocp.args.PyTreeSave(train),
            # Grain would write a file for each process, which another number of them
            # could not read; its state is the same in all.
            _DATA: ocp.args.JsonSave(
                {
                    "feed": data.get_state(),
                    "updates_per_call": run.config.trainer.updates_per_call,
                }
            ),
            _RUN: ocp.args.JsonSave(run.to_json()),
        }
        with self._writing():
            self._manager.save(step, args=ocp.args.Composite(**items))

    def restore(
        self,
        step: int,
        like: TrainState,
        data: grain.DatasetIterator,
        *,
        updates_per_call: int,
    ) -> TrainState:
        """Restores a step to go on from.

        Args:
            step: A committed step.
            like: A state of the same shapes, laid out as wanted.
            data: Iterator to set to the saved place.
            updates_per_call: M of that iterator, which may be another than it was.

        Returns:
            The state.

        Raises:
            DataFormatError: If the step holds other arrays, or lies between two calls.
            StorageError: If it cannot be read.
        """
        params, train = (jax.tree.map(_abstract, tree) for tree in _split(like))
        self._check_arrays(step, {_PARAMS: params, _TRAIN: train})
        restored = self._read(
            step,
            {
                _PARAMS: _restore_args(params),
                _TRAIN: _restore_args(train),
                _DATA: ocp.args.JsonRestore(),
            },
        )
        data.set_state(self._place(step, restored[_DATA], updates_per_call))
        return _join(restored[_PARAMS], restored[_TRAIN])

    def _place(
        self, step: int, saved: dict[str, Any], updates_per_call: int
    ) -> dict[str, int]:
        """Grain's state for calls of another size than those it was saved with."""
        place = {}
        for name, calls in saved["feed"].items():
            place[name], rest = divmod(
                calls * saved["updates_per_call"], updates_per_call
            )
            if rest:
                raise DataFormatError(
                    f"{self.folder}/{step}: trainer.updates_per_call is "
                    f"{updates_per_call}, and step {step} lies within such a call; "
                    f"expected a divisor of {step}"
                )
        return place

    def read_shapes(self, step: int, item: str) -> dict[str, Any]:
        """Shapes and dtypes of the arrays of an item, by path; no array is read."""
        with self._reading(step):
            return _by_name(self._manager.item_metadata(step)[item].tree)

    def _check_arrays(self, step: int, wanted: dict[str, Any]) -> None:
        """Refuses a step whose arrays are of other names or shapes."""
        differing = []
        for item, tree in wanted.items():
            saved, asked = (
                {name: tuple(leaf.shape) for name, leaf in leaves.items()}
                for leaves in (self.read_shapes(step, item), _by_name(tree))
            )
            differing += [
                f"  {item}/{name}: {saved.get(name, 'not there')} saved, "
                f"{asked.get(name, 'not there')} asked for"
                for name in sorted(saved | asked)
                if saved.get(name) != asked.get(name)
            ]
        if differing:
            more = len(differing) - _SHOWN
            raise DataFormatError(
                f"{self.folder}/{step}: holds another architecture:\n"
                + "\n".join(differing[:_SHOWN])
                + (f"\n  and {more} more" if more > 0 else "")
                + "\nTrain into another folder, or ask for the saved sizes"
            )

    def read_run(self, step: int) -> Run:
        """Reads what run a step is of."""
        value = self._read(step, {_RUN: ocp.args.JsonRestore()})
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
        restored = self._read(step, {_PARAMS: _restore_args(target)})
        params: Params = restored[_PARAMS]
        return params

    def wait(self) -> None:
        """Waits until every started save is committed.

        Raises:
            StorageError: If one cannot be written.
        """
        with self._writing():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and stops the background threads.

        Raises:
            StorageError: If a save cannot be written, and none has said so before.
        """
        said = self._failed
        try:
            with self._writing():
                self._manager.close()
        except StorageError:
            if not said:
                raise
        finally:
            if self._deletes:
                shutil.rmtree(self.folder / _DELETED, ignore_errors=True)

    def _read(self, step: int, items: dict[str, Any]) -> Any:
        """Restores items of a step, each by how it is asked for."""
        with self._reading(step):
            return self._manager.restore(step, args=ocp.args.Composite(**items))

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """Says which step it was that could not be read, and what to do then."""
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            before = max((each for each in self.steps() if each < step), default=None)
            raise StorageError(
                f"{self.folder}/{step}: cannot be read ({_reason(error)}). Try again; "
                "if it is damaged, delete that folder to "
                f"{'start anew' if before is None else f'go on from step {before}'}"
            ) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Says where it was that a save failed, which is in the background mostly."""
        try:
            yield
        except jax.errors.JaxRuntimeError:  # Of the devices, or of other processes.
            raise
        except Exception as error:
            self._failed = True
            with suppress(Exception):  # A folder that cannot be read, either.
                # What the save would have replaced is there still.
                self._manager.reload()
            good = self.latest()
            raise StorageError(
                f"{self.folder}: a checkpoint could not be written ({_reason(error)}); "
                f"the last good one is {'none' if good is None else f'step {good}'}. "
                "Make room there, then run the same command to go on"
            ) from error

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
            for name, before, now in differences(saved.config, run.config)
        ]
        if differing:
            raise DataFormatError(
                f"{self.folder}/{step}: is of another run than the one asked for "
                f"({'; '.join(differing)}); train into another folder"
            )


def _open(
    folder: epath.Path, options: ocp.CheckpointManagerOptions
) -> ocp.CheckpointManager:
    """Looks which steps there are, while their trainer may be deleting some."""

    def look() -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            folder,
            # Named with their handlers: of others it tells no shapes before a restore.
            item_handlers={
                _PARAMS: _array_handler(),
                _TRAIN: _array_handler(),
                _DATA: ocp.JsonCheckpointHandler(),
                _RUN: ocp.JsonCheckpointHandler(),
            },
            options=options,
        )

    for _ in range(_LOOKS - 1):
        # Raised for a step that was listed, and gone when it was asked for its time.
        with suppress(FileNotFoundError, NotADirectoryError):
            return look()
        time.sleep(_LOOK_S)
    return look()


def _empty(folder: epath.Path) -> None:
    """Deletes what is in a folder, which Orbax may be moving more into."""
    with suppress(FileNotFoundError):
        for each in list(folder.iterdir()):
            shutil.rmtree(each, ignore_errors=True)


def _array_handler() -> ocp.PyTreeCheckpointHandler:
    # Compressing takes many times the processor's time of writing, and of a trained
    # state 95 % are left.
    return ocp.PyTreeCheckpointHandler(use_compression=False)


def _restore_args(target: Any) -> ocp.args.PyTreeRestore:
    return ocp.args.PyTreeRestore(
        target, restore_args=ocp.checkpoint_utils.construct_restore_args(target)
    )


def _reason(error: Exception) -> str:
    """What the system said, which TensorStore tells by number in a long line."""
    number = re.search(r"os_error_code='(\d+)'", str(error))
    if number:
        return os.strerror(int(number[1]))
    return shorten((str(error) or type(error).__name__).splitlines()[0], _SAID)


def _by_name(tree: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


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
