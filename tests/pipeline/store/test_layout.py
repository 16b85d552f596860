import pytest

from pipeline.assembly.commit import claim
from pipeline.store import layout
from tests.parts import write_alone


def test_every_file_of_a_store_is_ours(make_npz, make_plan, read_tree):
    plan = make_plan(make_npz())
    with claim(plan):
        for part in plan.parts:
            write_alone(part)
        names = {*read_tree(plan.root), "dataset.json", "append.json", "relabel.json"}
    assert {"shard.json", f"{plan.parts[0].folder}/part.json"} < names
    assert {name for name in names if not layout.is_store_file(name)} == set()
    assert all(layout.is_store_file(f"{name}.__lock") for name in names)
    assert all(layout.is_store_file(f"{name}_1f.__lock") for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "parts/photos/a.jpg",
        "parts/00000/notes.txt",
        "parts/00000/observations/a.jpg",
        "parts/00000/observations/c/a.jpg",
        "parts/0/part.json",
        "parts/00000-mine/part.json",
        "parts/00000/labels-of-mine/part.json",
        "staging/a.npz",
        "staging/test/000000.npz",
        "dataset.json.bak",
        "deep/dataset.json",
        "part.json",
    ],
)
def test_what_has_another_shape_is_not(name):
    assert not layout.is_store_file(name)
