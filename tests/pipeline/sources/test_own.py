import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pipeline
from pipeline.cli import main
from pipeline.sources.detection import find_sources
from pipeline.sources.episodes import cut
from pipeline.sources.own import UserSource
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store

ROOT = Path(pipeline.__file__).parents[1]
# As a user writes it: one file of comma-separated numbers an episode.
WALKS = """
from pathlib import Path

import numpy as np

from pipeline.sources.episode_reader import EpisodeReader


class Walks(EpisodeReader):
    kind = "walks"

    def lengths(self):
        return [len(np.loadtxt(file)) - 1 for file in self._files()]

    def read(self, episodes):
        for index in episodes:
            rows = np.loadtxt(self._files()[index])
            yield {
                "observations": {"z": rows[:, :1], "a": rows[:, 1:3]},
                "actions": rows[:-1, 3:],
                "rewards": -np.ones(len(rows) - 1),
                "terminals": np.arange(len(rows) - 1) == len(rows) - 2,
            }

    def _files(self):
        return sorted(Path(self.path).glob("*.txt"))
"""
COUNTS = (4, 6, 3)


@pytest.fixture
def walks(tmp_path, monkeypatch):
    """A folder of walks, the rows of each, and a module that reads them."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "my_walks.py").write_text(WALKS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.delitem(sys.modules, "my_walks", raising=False)
    folder = tmp_path / "walks"
    folder.mkdir()
    random = np.random.default_rng(0)
    rows = [random.uniform(-1, 1, (n + 1, 5)) for n in COUNTS]
    for number, each in enumerate(rows):
        np.savetxt(folder / f"{number}.txt", each, fmt="%.18e")
    return str(folder), rows


def test_a_class_of_the_user_s_makes_a_store(walks, tmp_path):
    folder, rows = walks
    out = str(tmp_path / "store")
    own = ("--source", "my_walks:Walks")
    assert main(["shard", folder, "--dataset", "walk", "--out", out, *own]) == 0
    store = Store(out)
    part = store.manifest.parts[0]
    assert (part.origin.source, part.origin.name) == ("walks", "walks")
    field = store.manifest.fields["observations"]
    assert field.unit == "side by side: a[2], z[1]"
    expected = np.concatenate([each[:, [1, 2, 0]] for each in rows])
    np.testing.assert_array_equal(store.read("observations"), expected.astype("f4"))
    inner = np.setdiff1d(np.arange(len(expected)), np.cumsum([5, 7, 4]) - 1)
    actions = np.concatenate([each[:-1, 3:] for each in rows])
    np.testing.assert_array_equal(store.read("actions")[inner], actions.astype("f4"))
    assert store.read("masks")[inner].sum() == sum(COUNTS) - len(COUNTS)
    assert main(["verify", out, "--deep"]) == 0
    # Known again by its values, and taken in when they are others.
    assert main(["append", out, folder, *own]) == 0
    assert len(Store(out).manifest.parts) == 1
    for file in Path(folder).glob("*.txt"):
        np.savetxt(file, np.loadtxt(file) / 2)
    assert main(["append", out, folder, *own]) == 0
    assert len(Store(out).manifest.parts) == 2


def test_the_documentation_s_class_reads(tmp_path, monkeypatch):
    pieces = (ROOT / "docs/how-to/inputs.md").read_text().split("```")
    (code,) = [each for each in pieces if "(EpisodeReader)" in each]
    code = code.removeprefix("python")
    (tmp_path / "shown_walks.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for number, n in enumerate(COUNTS):
        np.savez(
            tmp_path / f"{number}.npz",
            observations=np.full((n + 1, 3), number),
            actions=np.zeros((n, 2)),
            rewards=np.ones(n),
            terminals=np.arange(n) == n - 1,
            remarks=np.array(["not read"]),
        )
    source = UserSource("shown_walks:Walks", str(tmp_path))
    facts = source.describe()
    assert facts.lengths == (5, 7, 4)
    assert facts.source == "shown_walks:Walks"
    (block,) = source.read([facts.episodes])
    numbers = np.repeat(range(3), facts.lengths)
    np.testing.assert_array_equal(block.rows["observations"][:, 0], numbers)
    assert (~block.rows["masks"]).sum() == len(COUNTS)


@pytest.mark.parametrize("rows", [1, 8, 1000])
def test_blocks_hold_the_same_wherever_they_are_cut(walks, rows):
    folder, given = walks
    source = UserSource("my_walks:Walks", folder)
    pieces = cut(source.describe().episodes, rows)
    blocks = [next(iter(source.read([piece]))) for piece in pieces]
    found = np.concatenate([block.rows["observations"] for block in blocks])
    np.testing.assert_array_equal(found, np.concatenate(given)[:, [1, 2, 0]])


def test_workers_need_to_be_able_to_import_it(walks):
    folder, _ = walks
    source = pickle.dumps(UserSource("my_walks:Walks", folder))
    program = (
        "import pickle, sys\n"
        "print(pickle.loads(sys.stdin.buffer.read()).describe().lengths)"
    )

    def work(*folders):
        return subprocess.run(
            [sys.executable, "-c", program],
            input=source,
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *folders])},
            cwd="/",
        )

    assert work(str(Path(folder).parent / "code")).stdout == b"(5, 7, 4)\n"
    said = work().stderr.decode().splitlines()[-1]
    assert said.startswith("pipeline.store.errors.UsageError: my_walks:Walks: expected")
    assert "set PYTHONPATH" in said
    assert "on all workers" in said


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        ("no_such:Walks", "expected a module no_such that can be imported"),
        ("my_walks:Runs", "expected a class Runs in my_walks, got none"),
        ("my_walks:np", "expected a subclass of .*EpisodeReader, got <module"),
        ("my_walks:Path", "expected a subclass of .*EpisodeReader, got <class"),
    ],
)
def test_what_is_no_reader_is_refused(walks, reader, message):
    with pytest.raises(UsageError, match=message) as said:
        UserSource(reader, walks[0]).describe()
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("[len(np", "[1 / 0 + len(np", r"ZeroDivisionError: .* at .*my_walks\.py:13"),
        (
            "yield {",
            "yield {1: 2 / 0,",
            r"ZeroDivisionError: .* at .*my_walks\.py:18",
        ),
        ("len(np.loadtxt(file)) - 1", "9", "expected 9 transitions, .* got 4"),
        ("len(np.loadtxt(file)) - 1", "'9'", "a number of transitions each, got"),
        ("sorted(", "(lambda found: [])(", "number of transitions each, got none"),
        ("rows[:-1, 3:]", "rows[:, 3:]", "expected 5 observations and 4 of all else"),
        ("rows[:-1, 3:]", "[['x']] * 4", "expected actions as numbers"),
        ('"rewards"', '"reward"', "add rewards"),
        ('"observations"', '"observation"', "add observations"),
        ("yield {", "return\n            yield {", "expected an episode, got none"),
        ("np.arange(len(rows) - 1) ==", "np.arange(len(rows) - 1) - ", "0 or 1, got"),
    ],
)
def test_mistakes_of_a_reader_are_told_in_one_line(walks, before, after, message):
    folder, _ = walks
    module = Path(folder).parent / "code" / "my_walks.py"
    assert before in WALKS
    module.write_text(WALKS.replace(before, after))
    source = UserSource("my_walks:Walks", folder)
    with pytest.raises((UsageError, DataFormatError), match=message) as said:
        source.describe()
    assert "\n" not in str(said.value)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ("pass", "returned what cannot be used in .*NoneType.*correct the class"),
        ("return [np.zeros(3)]", "returned what cannot be used in .*'items'"),
        ("return [{'actions': [[1], [1, 2]]}]", "returned what .*inhomogeneous"),
    ],
)
def test_results_that_are_none_blame_the_class(walks, read, message):
    folder, _ = walks
    module = Path(folder).parent / "code" / "my_walks.py"
    module.write_text(f"{WALKS}\n    def read(self, episodes):\n        {read}\n")
    with pytest.raises(UsageError, match=message) as said:
        UserSource("my_walks:Walks", folder).describe()
    assert "episode_reader.py" not in str(said.value)


def test_episodes_of_another_kind_are_named(walks):
    folder, rows = walks
    np.savetxt(Path(folder) / "2.txt", np.hstack([rows[2], rows[2][:, :1]]))
    source = UserSource("my_walks:Walks", folder)
    pieces = cut(source.describe().episodes, 1)
    with pytest.raises(DataFormatError, match=r"episode 2: .*actions float32\[3\]"):
        list(source.read(pieces[2:]))


def test_images_in_a_dictionary_are_said(walks):
    folder, _ = walks
    source = UserSource("my_walks:Walks", folder)
    assert source.describe().warnings == ()
    module = Path(folder).parent / "code" / "my_walks.py"
    image = "np.zeros((len(rows), 4, 4, 3), np.uint8)"
    module.write_text(WALKS.replace('{"z":', f'{{"eye": {image}, "z":'))
    del sys.modules["my_walks"]
    (warning,) = source.describe().warnings
    assert "hold images, eye [4, 4, 3], whose" in warning


def test_an_input_for_val_is_read_by_the_same_class():
    kind, found = find_sources("a", dataset="x", kind="my:Own", val="b")
    assert kind == "my:Own"
    assert found == [
        ("train", UserSource("my:Own", "a")),
        ("val", UserSource("my:Own", "b")),
    ]


TABLE = """
import numpy as np

from pipeline.sources.episode_reader import EpisodeReader


class Table(EpisodeReader):
    def lengths(self):
        return [4, 5]

    def read(self, episodes):
        for index in episodes:
            n = self.lengths()[index]
            yield {
                "observations": np.full((n + 1, 3), np.nan if index else 0.0),
                "actions": np.zeros((n, 2)),
                "rewards": np.zeros(n),
                "terminals": np.zeros(n),
            }
"""


def test_an_input_that_is_no_path_hides_no_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_table.py").write_text(TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    out = str(tmp_path / "store")
    own = ("--source", "my_table:Table")
    command = ["shard", "table:walks", "--dataset", "walk", "--out", out, *own]
    assert main(command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "table:walks, episode 1, row 0: observations[0] is nan" in said
    assert main([*command, "--on-bad-episode", "skip", "--max-bad-share", "0.5"]) == 0
    assert Store(out).manifest.parts[0].episodes == 1
