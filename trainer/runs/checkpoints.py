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
from types import TracebackType
from typing import Any, Self

import grain
import jax
import orbax.checkpoint as ocp
from etils import epath

from pipeline.store.errors import DataFormatError
from trainer.agents.base import Agent, AgentState
from trainer.config import differences
from trainer.errors import StorageError
from trainer.nn.networks import Params
from trainer.runs.folder import RunFolder
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


class CheckpointReader:
    """Reads the checkpoints of one run's folder, and cannot write any.

    A context manager; closing it stops the background threads.

    Args:
        folder: RUN.

    Raises:
        DataFormatError: If it has no checkpoints' folder.
    """

    def __init__(self, folder: RunFolder) -> None:
        if not folder.checkpoints.is_dir():
            raise DataFormatError(
                f"{folder.checkpoints}: expected checkpoints of a run, found no such "
                "folder; has training reached its first checkpoint?"
            )
        self.folder = folder.checkpoints
        self._manager = _open(
            folder, ocp.CheckpointManagerOptions(create=False, read_only=True)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def steps(self) -> list[int]:
        """Committed steps, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """Last committed step, or None. A half-written step is not one."""
        return max(self.steps(), default=None)

    def read_run(self, step: int) -> Run:
        """Reads what run a step is of."""
        value = self._read(step, {_RUN: ocp.args.JsonRestore()})
        return Run.from_json(value[_RUN], where=f"{self.folder}/{step}/{_RUN}")

    def read_shapes(self, step: int, item: str) -> dict[str, Any]:
        """Shapes and dtypes of the arrays of an item, by path; no array is read."""
        with self._reading(step):
            return _by_name(self._manager.item_metadata(step)[item].tree)

    def restore_params(self, step: int, agent: Agent[Any], *, seeds: int) -> Params:
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
        where = f"{self.folder}/{step}"
        params, train = (jax.tree.map(_abstract, tree) for tree in _split(like))
        for_items = {_PARAMS: params, _TRAIN: train}
        check_same_arrays(
            {item: self.read_shapes(step, item) for item in for_items},
            {item: _by_name(tree) for item, tree in for_items.items()},
            where=where,
        )
        restored = self._read(
            step,
            {
                _PARAMS: _restore_args(params),
                _TRAIN: _restore_args(train),
                _DATA: ocp.args.JsonRestore(),
            },
        )
        data.set_state(place_in_data(restored[_DATA], updates_per_call, where=where))
        return _join(restored[_PARAMS], restored[_TRAIN])

    def close(self) -> None:
        """Stops the background threads."""
        self._manager.close()

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


class CheckpointWriter(CheckpointReader):
    """Writes the checkpoints of one run's folder, and reads what to go on from.

    Args:
        folder: RUN; made if it does not exist.
        keep: Latest steps kept; None keeps all.
        keep_every: Steps that are multiples of it are kept for good.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
    ) -> None:
        self.folder = folder.checkpoints
        self._failed = False
        self._snapshot: Snapshot | None = None
        self._deletes = not folder.remote and jax.process_index() == 0
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep,
            keep_period=keep_every,
            create=True,
            # What a killed save left is as large as a whole step, and its step may
            # never be saved again.
            cleanup_tmp_directories=True,
            # By a rename: nothing says of a step that half of its files are gone.
            # Buckets have no rename.
            todelete_subdir=None if folder.remote else _DELETED,
        )
        self._manager = _open(folder, options)

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


def check_same_run(saved: Run, run: Run, *, where: str) -> None:
    """Refuses to go on from what another run saved.

    Args:
        saved: Run that a step is of.
        run: Run that wants to go on from it.
        where: The step, for the error.

    Raises:
        DataFormatError: If data, hyperparameters, batch or seeds differ.
    """
    if saved.fingerprint != run.fingerprint:
        raise DataFormatError(
            f"{where}: was trained on data {saved.fingerprint}, and the store now is "
            f"{run.fingerprint}; train into another folder"
        )
    differing = [
        f"{name}: {before!r} before, {now!r} now"
        for name, before, now in differences(saved.config, run.config)
    ]
    if differing:
        raise DataFormatError(
            f"{where}: is of another run than the one asked for "
            f"({'; '.join(differing)}); train into another folder"
        )


def check_same_arrays(
    saved: dict[str, dict[str, Any]], asked: dict[str, dict[str, Any]], *, where: str
) -> None:
    """Refuses a step whose arrays are of other names or shapes.

    Args:
        saved: By item and path, what has a ``shape``.
        asked: The same of the state that is to go on.
        where: The step, for the error.

    Raises:
        DataFormatError: Listing the arrays that differ, with both shapes.
    """
    differing = []
    for item in asked:
        there, wanted = (
            {name: tuple(leaf.shape) for name, leaf in arrays[item].items()}
            for arrays in (saved, asked)
        )
        differing += [
            f"  {item}/{name}: {there.get(name, 'not there')} saved, "
            f"{wanted.get(name, 'not there')} asked for"
            for name in sorted(there | wanted)
            if there.get(name) != wanted.get(name)
        ]
    if differing:
        more = len(differing) - _SHOWN
        raise DataFormatError(
            f"{where}: holds another architecture:\n"
            + "\n".join(differing[:_SHOWN])
            + (f"\n  and {more} more" if more > 0 else "")
            + "\nTrain into another folder, or ask for the saved sizes"
        )


def place_in_data(
    saved: dict[str, Any], updates_per_call: int, *, where: str
) -> dict[str, int]:
    """Grain's state for calls of another size than those it was saved with.

    Args:
        saved: The item ``data`` of a step.
        updates_per_call: M of the calls to come.
        where: The step, for the error.

    Returns:
        State of the iterator over calls.

    Raises:
        DataFormatError: If the step lies within such a call.
    """
    place = {}
    for name, calls in saved["feed"].items():
        step = calls * saved["updates_per_call"]
        place[name], rest = divmod(step, updates_per_call)
        if rest:
            raise DataFormatError(
                f"{where}: trainer.updates_per_call is {updates_per_call}, and step "
                f"{step} lies within such a call; expected a divisor of {step}"
            )
    return place


def _open(
    folder: RunFolder, options: ocp.CheckpointManagerOptions
) -> ocp.CheckpointManager:
    """Looks which steps there are, while their trainer may be deleting some."""
    path = folder.checkpoints
    if not folder.remote:
        path = path.absolute()  # It holds in any working directory, as gs:// does.

    def look() -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            path,
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
