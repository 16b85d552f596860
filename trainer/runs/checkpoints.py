"""Checkpoints: Orbax, asynchronous, every step committed at once.

On disk that is a rename; on gs:// the last object of a step says that it is whole.

Five items a step: ``params`` (enough to act), ``train`` (targets, optimiser, step,
keys), ``data`` (the state of Grain's iterator), ``run`` (what run it is of) and
``digests`` of the other four, which whatever is read is compared with. Steps of earlier
versions have no digests, and are taken as they are read.
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
from trainer.runs.resumption import check_same_arrays, place_in_data
from trainer.runs.run import Run
from trainer.runs.snapshot import Snapshot
from trainer.step.state import TrainState

_PARAMS, _TRAIN, _DATA, _RUN = "params", "train", "data", "run"
_DIGESTS = "digests"
# The items of a step that hold arrays.
ARRAY_ITEMS = (_PARAMS, _TRAIN)
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
            return name_leaves(self._manager.item_metadata(step)[item].tree)

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
        asked = _items_like(like)
        check_same_arrays(
            {item: self.read_shapes(step, item) for item in asked},
            {item: name_leaves(tree) for item, tree in asked.items()},
            where=where,
        )
        arrays = {item: _restore_args(tree) for item, tree in asked.items()}
        restored = self._read(step, {**arrays, _DATA: ocp.args.JsonRestore()})
        data.set_state(place_in_data(restored[_DATA], updates_per_call, where=where))
        return _join(restored[_PARAMS], restored[_TRAIN])

    def close(self) -> None:
        """Stops the background threads."""
        self._manager.close()

    def _read(self, step: int, items: dict[str, Any]) -> Any:
        """Restores items of a step, each by how it is asked for, and checks them."""
        with self._reading(step):
            if (self.folder / str(step) / _DIGESTS).exists():
                items = {**items, _DIGESTS: ocp.args.JsonRestore()}
            restored = self._manager.restore(step, args=ocp.args.Composite(**items))
            _check_digests(restored)
            return restored

    @contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        """Says which step it was that could not be read, and what to do then."""
        try:
            yield
        except (jax.errors.JaxRuntimeError, RunError):  # Of devices; of signals.
            raise
        except Exception as error:  # Whatever damaged metadata make Orbax raise.
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
        self._like: dict[str, Any] = {}
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
            self._like = _items_like(state)
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
        # Grain would write a file for each process, which another number of them could
        # not read; its state is the same in all.
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
        with self._writing():
            self._manager.save(step, args=ocp.args.Composite(**items))

    def last_good(self) -> int | None:
        """Finds the last step that is read as it was saved; None if there is none.

        Its arrays are read one by one: beside the state of a run there may be no room
        for another. All processes must call this.
        """
        for step in reversed(self.steps()):
            with suppress(StorageError):
                for item, tree in self._like.items():
                    for alone in _leaf_by_leaf(tree):
                        self._read(step, {item: _restore_args(alone)})
                self._read(step, {_DATA: ocp.args.JsonRestore()})
                self.read_run(step)
                return step
        return None

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
            step = self.latest()
            last = "none" if step is None else f"step {step}"
            raise StorageError(
                f"{self.folder}: a checkpoint could not be written ({_reason(error)}); "
                f"the last one written is {last}. "
                "Make room there, then run the same command to go on"
            ) from error


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
                _DIGESTS: ocp.JsonCheckpointHandler(),
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


def _check_digests(restored: Any) -> None:
    """Refuses values that are not those that were saved.

    Args:
        restored: Items of a step, with its digests if it has any.

    Raises:
        OSError: Naming the array or the item.
    """
    stated = restored.get(_DIGESTS)
    if stated is None:
        return
    if not is_as_sealed(stated):
        raise OSError(f"{_DIGESTS}: bytes have changed")
    for item in restored.keys() - {_DIGESTS}:
        if item in ARRAY_ITEMS:
            for name, found in digest_arrays(restored[item]).items():
                if found != stated[item][name]:
                    raise OSError(f"{item}/{name}: bytes have changed")
        elif digest(restored[item]) != stated[item]:
            raise OSError(f"{item}: bytes have changed")


def _items_like(state: TrainState) -> dict[str, Any]:
    """The items that hold arrays, as shapes to restore."""
    params, train = (jax.tree.map(_abstract, tree) for tree in _split(state))
    return {_PARAMS: params, _TRAIN: train}


def _leaf_by_leaf(tree: Any) -> Iterator[Any]:
    """A tree once for each of its leaves, the others left out of what is restored."""
    leaves, structure = jax.tree.flatten(tree)
    for place, leaf in enumerate(leaves):
        alone = [ocp.PLACEHOLDER] * len(leaves)
        alone[place] = leaf
        yield jax.tree.unflatten(structure, alone)


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
