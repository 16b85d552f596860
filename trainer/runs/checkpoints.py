"""Checkpoints of a run, written by Orbax in the background and committed atomically.

On disk a step is committed by a rename; on gs:// the last object of a step says that
the step is whole.

A step has five items: ``params`` (all that acting needs: the average, if the agent
keeps one), ``train`` (targets, optimiser, step, keys, and the trained parameters if
``params`` is an average), ``data`` (the state of Grain's iterator), ``run`` (the
description of the run) and ``digests`` of the other four, which everything that is read
is compared with. Steps of earlier versions have no digests and are not compared.
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
from pipeline.store.seals import digest, is_as_sealed, seal
from trainer.agents.base import Agent, AgentState
from trainer.errors import RunError, StorageError
from trainer.nn.networks import Params
from trainer.runs.digests import digest_arrays, name_leaves
from trainer.runs.folder import RunFolder
from trainer.runs.orbax_log import hide_unstarted_writes, silence_orbax
from trainer.runs.resumption import check_same_arrays, convert_data_state
from trainer.runs.retention import KEEP_ALL, Retention
from trainer.runs.run import Run
from trainer.runs.snapshot import Snapshot
from trainer.step.state import TrainState, abstract_state

_PARAMS, _TRAIN, _DATA, _RUN = "params", "train", "data", "run"
_DIGESTS = "digests"
# Items of a step that hold arrays.
ARRAY_ITEMS = (_PARAMS, _TRAIN)
# Folder that steps are moved to before they are deleted.
_DELETED = "deleted"
# Characters that are kept of a library's error message, since TensorStore appends all
# of its settings.
_MESSAGE_LENGTH = 200
# Attempts to open a folder whose steps are being deleted, and seconds between two.
_LOOKS, _LOOK_S = 5, 0.2


class CheckpointReader:
    """Reads the checkpoints of a run's folder; it has no method that writes.

    The reader is a context manager; leaving it stops the background threads.

    Args:
        folder: Folder of the run, RUN.

    Raises:
        DataFormatError: If the run has no folder of checkpoints.
    """

    def __init__(self, folder: RunFolder) -> None:
        if not folder.checkpoints.is_dir():
            raise DataFormatError(
                f"{folder.checkpoints}: expected checkpoints of a run, found no such "
                "folder; check the path, or wait for the run's first checkpoint"
            )
        self.folder = folder.checkpoints
        with silence_orbax():
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
        """Lists the committed steps, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """Finds the last committed step; a step being written does not count."""
        return max(self.steps(), default=None)

    def read_run(self, step: int) -> Run:
        """Reads the description of the run from a step."""
        restored = self._read(step, {_RUN: ocp.args.JsonRestore()})
        return Run.from_json(restored[_RUN], where=f"{self.folder}/{step}/{_RUN}")

    def read_shapes(self, step: int, item: str) -> dict[str, Any]:
        """Reads shapes and dtypes of an item's arrays, by path, but no array."""
        with self._explain_read_errors(step):
            return name_leaves(self._manager.item_metadata(step)[item].tree)

    def restore_params(self, step: int, agent: Agent[Any], *, seeds: int) -> Params:
        """Restores the parameters of all seeds to the first device of this process.

        Args:
            step: A committed step.
            agent: Agent of the run.
            seeds: Number Q of the run's seeds.

        Returns:
            Parameters with a leading axis ``Q``.

        Raises:
            StorageError: If the step cannot be read.
        """
        # Shapes come from the agent and not from the checkpoint, so that its devices
        # and mesh need not exist here.
        device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        target = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device),
            abstract_state(agent, seeds=seeds).agent.params,
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
        """Restores a step for training to resume from.

        Args:
            step: A committed step.
            like: A state of the same shapes, in the layout that is wanted.
            data: Iterator to set to the saved place.
            updates_per_call: Updates M of a call of that iterator, which may differ
                from those of the saved one.

        Returns:
            The state.

        Raises:
            DataFormatError: If the step holds other arrays, or lies within a call.
            StorageError: If the step cannot be read.
        """
        where = f"{self.folder}/{step}"
        asked = _items_like(like)
        check_same_arrays(
            {item: self.read_shapes(step, item) for item in asked},
            {item: name_leaves(tree) for item, tree in asked.items()},
            where=where,
        )
        arrays = {item: _restore_args(tree) for item, tree in asked.items()}
        restored = self._read(step, {**arrays, _DATA: ocp.args.JsonRestore()})
        data.set_state(
            convert_data_state(restored[_DATA], updates_per_call, where=where)
        )
        return _join(restored[_PARAMS], restored[_TRAIN])

    def close(self) -> None:
        """Stops the background threads."""
        self._manager.close()

    def _read(self, step: int, items: dict[str, Any]) -> Any:
        """Restores items of a step and compares them with their digests."""
        with self._explain_read_errors(step):
            if (self.folder / str(step) / _DIGESTS).exists():
                items = {**items, _DIGESTS: ocp.args.JsonRestore()}
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
            _check_digests(restored)
            return restored

    @contextmanager
    def _explain_read_errors(self, step: int) -> Iterator[None]:
        """Turns errors of reading into one that names the step and what to do.

        Raises:
            StorageError: If the step cannot be read.
        """
        try:
            yield
        # Neither is the step's fault: the first comes from devices, the second from a
        # signal.
        except (jax.errors.JaxRuntimeError, RunError):
            raise
        # Damaged metadata make Orbax raise errors of many classes.
        except Exception as error:
            previous = max(
                (other for other in self.steps() if other < step), default=None
            )
            raise StorageError(
                f"{self.folder}/{step}: cannot be read ({_describe_cause(error)}). Try "
                "again; if it is damaged, delete that folder to "
                f"{'start anew' if previous is None else f'go on from step {previous}'}"
            ) from error


class CheckpointWriter(CheckpointReader):
    """Writes the checkpoints of a run's folder, and reads the one to resume from.

    Args:
        folder: Folder of the run, RUN; made if it does not exist.
        retention: Which steps are kept; all by default.
    """

    def __init__(self, folder: RunFolder, retention: Retention = KEEP_ALL) -> None:
        self.folder = folder.checkpoints
        self._failed = False
        self._snapshot: Snapshot | None = None
        self._like: dict[str, Any] = {}
        self._deletes = not folder.remote and jax.process_index() == 0
        options = ocp.CheckpointManagerOptions(
            preservation_policy=retention,
            create=True,
            # A killed save leaves files as large as a checkpoint, and its step may
            # never be saved again.
            cleanup_tmp_directories=True,
            # Steps are renamed before they are deleted: a step whose deletion was
            # interrupted would look whole. Buckets have no rename.
            todelete_subdir=None if folder.remote else _DELETED,
        )
        self._manager = _open(folder, options)

    def prepare(self, state: TrainState) -> Snapshot:
        """Allocates the memory that saves copy a state to.

        Args:
            state: State of the shapes and layout that will be saved.

        Returns:
            The snapshot that saves copy to.
        """
        if self._snapshot is None:
            self._snapshot = Snapshot(state)
            self._like = _items_like(state)
        return self._snapshot

    def save(
        self, step: int, state: TrainState, data: grain.DatasetIterator, run: Run
    ) -> None:
        """Starts saving a step; returns once the state's values are copied.

        Args:
            step: Updates done.
            state: State after them.
            data: Iterator, whose next element is the next call's batches.
            run: Description of the run.

        Raises:
            StorageError: If this step, or the one before, cannot be written.
        """
        # The previous save may still be reading the snapshot.
        self.wait()
        # Old steps, which Orbax has only moved aside, are deleted before this one takes
        # more room. A thread does that: the loop need not wait for it.
        if self._deletes:
            threading.Thread(target=_empty, args=(self.folder / _DELETED,)).start()
        params, train = _split(self.prepare(state).take(state))
        # Grain's own handler would write a file for each process, which another number
        # of processes could not read. The state is the same in all of them.
        place = {
            "feed": data.get_state(),
            "updates_per_call": run.config.trainer.updates_per_call,
        }
        described = run.to_json()
        digests = {
            _PARAMS: digest_arrays(params),
            _TRAIN: digest_arrays(train),
            _DATA: digest(place),
            _RUN: digest(described),
        }
        items = {
            _PARAMS: ocp.args.PyTreeSave(params),
            _TRAIN: ocp.args.PyTreeSave(train),
            _DATA: ocp.args.JsonSave(place),
            _RUN: ocp.args.JsonSave(described),
            _DIGESTS: ocp.args.JsonSave(seal(digests)),
        }
        with self._explain_write_errors():
            self._manager.save(step, args=ocp.args.Composite(**items))

    def last_good(self) -> int | None:
        """Finds the last step that can be read as it was saved; None if there is none.

        All processes must call this.
        """
        for step in reversed(self.steps()):
            with suppress(StorageError):
                # Array by array, because memory may have no room for a second state
                # beside that of the run.
                for item, tree in self._like.items():
                    for single in _leaf_by_leaf(tree):
                        self._read(step, {item: _restore_args(single)})
                self._read(step, {_DATA: ocp.args.JsonRestore()})
                self.read_run(step)
                return step
        return None

    def wait(self) -> None:
        """Waits until every started save is committed.

        Raises:
            StorageError: If a step cannot be written.
        """
        with self._explain_write_errors():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for saves and stops the background threads.

        Raises:
            StorageError: If a save cannot be written, unless that was raised before.
        """
        # Orbax may raise a failed save's error again when it is closed.
        already_raised = self._failed
        try:
            with self._explain_write_errors():
                self._manager.close()
        except StorageError:
            if not already_raised:
                raise
        finally:
            if self._deletes:
                shutil.rmtree(self.folder / _DELETED, ignore_errors=True)

    @contextmanager
    def _explain_write_errors(self) -> Iterator[None]:
        """Turns errors of saving into one that names the folder and what to do.

        Raises:
            StorageError: If a save fails, or has failed in the background.
        """
        try:
            yield
        # Devices or other processes raise this, and no room on a disk would help.
        except jax.errors.JaxRuntimeError:
            raise
        except Exception as error:
            self._failed = True
            hide_unstarted_writes()
            # Orbax has dropped from its list the old step that this save would have
            # replaced, though it still exists. Reading the folder may fail as well.
            with suppress(Exception):
                self._manager.reload()
            step = self.latest()
            last = "none" if step is None else f"step {step}"
            # Called the last one written, not the last good one: nobody has read it.
            raise StorageError(
                f"{self.folder}: a checkpoint could not be written "
                f"({_describe_cause(error)}); the last one written is {last}. "
                "Make room there, then run the same command to go on"
            ) from error


def _open(
    folder: RunFolder, options: ocp.CheckpointManagerOptions
) -> ocp.CheckpointManager:
    """Opens Orbax's manager of a folder whose trainer may be deleting steps."""
    path = folder.checkpoints
    if not folder.remote:
        # Orbax uses the path later, when the working directory may be another.
        path = path.absolute()

    def look() -> ocp.CheckpointManager:
        return ocp.CheckpointManager(
            path,
            # Without handlers, Orbax tells no shapes of items before they are restored.
            item_handlers={
                _PARAMS: _array_handler(),
                _TRAIN: _array_handler(),
                _DATA: ocp.JsonCheckpointHandler(),
                _RUN: ocp.JsonCheckpointHandler(),
                _DIGESTS: ocp.JsonCheckpointHandler(),
            },
            options=options,
        )

    for _ in range(_LOOKS - 1):
        # Orbax lists the steps and then asks each for its time; a step that is deleted
        # in between raises.
        with suppress(FileNotFoundError, NotADirectoryError):
            return look()
        time.sleep(_LOOK_S)
    return look()


def _empty(folder: epath.Path) -> None:
    """Deletes the contents of a folder, into which Orbax may be moving more steps."""
    with suppress(FileNotFoundError):
        for path in list(folder.iterdir()):
            shutil.rmtree(path, ignore_errors=True)


def _array_handler() -> ocp.PyTreeCheckpointHandler:
    # Not compressed: that would take many times the processor time of writing, and a
    # trained state shrinks by 5 % only (tests/benchmarks/README.md).
    return ocp.PyTreeCheckpointHandler(use_compression=False)


def _check_digests(restored: Any) -> None:
    """Refuses values that differ from those that were saved.

    Args:
        restored: Items of a step, with its digests if it has any.

    Raises:
        OSError: Names the array or the item that differs.
    """
    saved = restored.get(_DIGESTS)
    if saved is None:
        return
    if not is_as_sealed(saved):
        raise OSError(f"{_DIGESTS}: bytes have changed")
    for item in restored.keys() - {_DIGESTS}:
        if item in ARRAY_ITEMS:
            for name, array_digest in digest_arrays(restored[item]).items():
                if array_digest != saved[item][name]:
                    raise OSError(f"{item}/{name}: bytes have changed")
        elif digest(restored[item]) != saved[item]:
            raise OSError(f"{item}: bytes have changed")


def _items_like(state: TrainState) -> dict[str, Any]:
    """Makes abstract arrays of a state, by the item that they are restored from."""
    params, train = (jax.tree.map(_abstract, tree) for tree in _split(state))
    return {_PARAMS: params, _TRAIN: train}


def _leaf_by_leaf(tree: Any) -> Iterator[Any]:
    """Yields a tree for each leaf, in which placeholders keep the others unread."""
    leaves, structure = jax.tree.flatten(tree)
    for place, leaf in enumerate(leaves):
        single = [ocp.PLACEHOLDER] * len(leaves)
        single[place] = leaf
        yield jax.tree.unflatten(structure, single)


def _restore_args(target: Any) -> ocp.args.PyTreeRestore:
    return ocp.args.PyTreeRestore(
        target, restore_args=ocp.checkpoint_utils.construct_restore_args(target)
    )


def _describe_cause(error: Exception) -> str:
    """Describes an error in a few words."""
    # TensorStore gives the operating system's error by number, within a long line.
    number = re.search(r"os_error_code='(\d+)'", str(error))
    if number:
        return os.strerror(int(number[1]))
    message = str(error) or type(error).__name__
    return shorten(message.splitlines()[0], _MESSAGE_LENGTH)


def _split(state: TrainState) -> tuple[Params, dict[str, Any]]:
    # Parameters that act are an item of their own, so that acting reads nothing else.
    agent = state.agent
    train = {
        "targets": agent.targets,
        "opt_state": agent.opt_state,
        "step": agent.step,
        "keys": state.keys,
    }
    if agent.average is not None:
        train["trained_params"] = agent.params
    return agent.acting, train


def _join(params: Params, train: dict[str, Any]) -> TrainState:
    trained = train.get("trained_params")
    agent = AgentState(
        params=params if trained is None else trained,
        targets=train["targets"],
        opt_state=train["opt_state"],
        step=train["step"],
        average=None if trained is None else params,
    )
    return TrainState(agent, train["keys"])


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
