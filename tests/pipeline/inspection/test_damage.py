"""A flipped bit of a store is reported in one line, or changes nothing that is read."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.assembly.commit import commit_store
from pipeline.cli import main
from pipeline.inspection.export import export_npz
from pipeline.inspection.verify import verify_store
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.fuzz import flip_bits
from tests.parts import write_alone
from trainer.cli import main as train
from trainer.data.block_window import ResidentRows
from trainer.data.table import load_table


@pytest.fixture
def root(make_npz, make_plan):
    plan = make_plan(
        make_npz((5, 5, 7, 4, 1, 6)), val=make_npz((3, 4), name="v.npz", seed=1)
    )
    commit_store(plan, write_alone(*plan.parts))
    assert len(Store(plan.root).manifest.parts) == 3
    return plan.root


def read_all(root):
    """Reads everything that a store states and holds, as values to compare."""
    store = Store(root)
    value = store.manifest
    arrays = [
        store.read_rows(part, name, 0, rows).tobytes()
        for part in value.parts
        for name, rows in (
            *((name, part.rows) for name in value.fields),
            *((name, part.episodes) for name in part.table),
        )
    ]
    table = load_table(store, task=2, discount=0.9)
    return value, arrays, table.fingerprint, table.observations.tobytes()


@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_read_as_another_value(root, count):
    expected = read_all(root)
    assert verify_store(Store(root), deep=True) == []
    refused, found = [], 0
    for flipped in flip_bits(Path(root), count=count):
        try:
            assert read_all(root) == expected, flipped
        except DataFormatError as error:
            refused.append(str(error))
        try:
            found += len(verify_store(Store(root))) > 0
        except DataFormatError:
            found += 1
    assert all(len(said.splitlines()) == 1 for said in refused)
    # The other bits are in part.json, which only `verify` and writers read, or in
    # metadata of arrays that no reader uses.
    assert count / 2 < len(refused) <= found <= count


def flip_in(root, name):
    """Flips a bit in the middle of the shard of an array of the first part."""
    part = Store(root).manifest.parts[0]
    (shard,) = (
        path for path in Path(root, part.folder, name, "c").rglob("*") if path.is_file()
    )
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 16
    shard.write_bytes(data)
    return f"{part.folder}/{name}"


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("observations", "export {root} --npz {out}/a.npz"),
        ("qpos", "relabel {root} --discounts 0.5"),
        ("rewards", "inspect {root} --plot {out}/a.png"),
        ("episode_digests", "append {root} {out}/more.npz"),
    ],
)
def test_commands_name_the_array_in_one_line(
    root, make_npz, tmp_path, capsys, name, command
):
    make_npz((5,), name="more.npz", seed=7)
    array = flip_in(root, name)
    assert main(command.format(root=root, out=tmp_path).split()) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    (line,) = (line for line in said.splitlines() if line.startswith("error: "))
    assert f"{array}: could not be read" in line


def test_verify_says_which_array(root, capsys):
    array = flip_in(root, "masks")
    assert main(["verify", root]) == 1
    assert f"{array}: cannot be read" in capsys.readouterr().out


def test_training_names_the_array(root, tmp_path, capsys):
    array = flip_in(root, "observations")
    config = Path(__file__).parents[3] / "configs" / "cube-single-play.toml"
    words = ["train", str(config), "--store", root, "--task", "1"]
    words += ["--out", str(tmp_path / "run"), "--agent.discount", "0.99"]
    assert train(words) == 2
    said = capsys.readouterr().err
    assert f"{array}: could not be read" in said
    assert not (tmp_path / "run").exists()


def draw_all(rows):
    """Draws until every block was resident once."""
    for step in range(1_000):
        with rows.at(step) as table:
            assert np.isfinite(table.actions).all()


def test_a_window_of_the_rows_names_the_array(root):
    array = flip_in(root, "actions")
    rows = ResidentRows(
        Store(root),
        task=1,
        discount=0.9,
        limit_bytes=1 << 20,
        block_rows=8,
        batch_size=4,
        reuse=1.0,
        span=1,
        seed=0,
    )
    with pytest.raises(DataFormatError, match=f"{array}: could not be read"):
        draw_all(rows)
    rows.close()


def test_a_file_of_an_export_is_whole_or_not_there(root, tmp_path):
    array = flip_in(root, "qvel")
    with pytest.raises(DataFormatError, match=array):
        export_npz(Store(root), str(tmp_path / "a.npz"))
    assert not list(tmp_path.glob("a*"))
