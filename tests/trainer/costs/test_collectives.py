"""Groups and bytes of collectives, counted by hand, in all of XLA's notations."""

import pytest

from trainer.costs import hlo
from trainer.costs.collectives import find_collectives, read_device_groups

MESH = {"seed": 1, "data": 2, "fsdp": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,4},{1,5}}, x", [[0, 4], [1, 5]]),
        ("replica_groups={}, x", [list(range(8))]),
        ("replica_groups=[4,2]<=[8], x", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ("replica_groups=[4,2]<=[2,4]T(1,0), x", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=4,'b'=2] {'b'}, x", [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (
            "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'a'}, x",
            [[0, 1], [2, 3], [4, 5], [6, 7]],
        ),
        (
            "replica_groups=mesh['a'=2,'b'=4] {'a','b':(2)2}, x",
            [[0, 1, 4, 5], [2, 3, 6, 7]],
        ),
        ("source_target_pairs={{0,1},{1,0}}, x", [[0, 1], [1, 0]]),
    ],
)
def test_groups_are_read(text: str, groups: list[list[int]]) -> None:
    assert read_device_groups(text, devices=8) == groups


def test_groups_that_are_written_otherwise_are_no_guess() -> None:
    with pytest.raises(ValueError, match="expected groups of devices"):
        read_device_groups("replica_groups=somehow", devices=8)


def program(*lines: str) -> hlo.Module:
    inside = "\n".join(f"  %i{n} = {line}" for n, line in enumerate(lines))
    return hlo.parse_module(
        "HloModule m\n\n"
        "%all-reduce-scatter.1 (p: f32[16]) -> f32[8] {\n"
        "  %a = f32[16]{0} all-reduce(%p), replica_groups={{0,2},{1,3},{4,6},{5,7}}\n"
        "}\n\n%start (p: f32[16]) -> f32[8] {\n"
        "  %b = bf16[16]{0} all-gather(%p), replica_groups={{0,1}},"
        ' frontend_attributes={chain_id="3"}\n'
        "}\n\nENTRY %main (x: f32[8]) -> f32[8] {\n" + inside + "\n}\n"
    )


def test_kinds_axes_and_bytes_by_hand() -> None:
    found = find_collectives(
        program(
            "f32[8]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1",
            # Two fusions have a part each of the same all-gather.
            "f32[8]{0} fusion(%x), kind=kCustom, calls=%start",
            "f32[8]{0} fusion(%x), kind=kCustom, calls=%start",
            "(f32[4]{0}, f32[8]{0}) all-gather-start(%x), replica_groups=[4,2]<=[8]",
            "f32[8]{0} all-gather-done(%i3)",
            "(f32[2]{0}, s32[]) all-reduce(%x), replica_groups=[2,4]<=[2,2,2]T(1,0,2)",
            "f32[4]{0} reduce-scatter(%x), replica_groups={{0,4},{1,5},{2,6},{3,7}}",
            "f32[4]{0} all-reduce(%x), replica_groups=[8,1]<=[8]",
            "f32[4]{0} collective-permute(%x), source_target_pairs={{0,2},{2,0}}",
        ),
        MESH,
    )
    assert [(each.kind, each.axes, each.bytes, each.sent) for each in found] == [
        # A chip sends half of 16 floats; an all-reduce sends as much once more.
        ("reduce-scatter", ("fsdp",), 64, 32),
        ("all-gather", ("tensor",), 32, 16),
        ("all-gather", ("tensor",), 32, 16),
        # Devices 0, 1, 4 and 5 send three quarters, twice.
        ("all-reduce", ("data", "tensor"), 12, 18),
        ("reduce-scatter", ("data",), 32, 16),
        ("collective-permute", ("fsdp",), 16, 16),
    ]
