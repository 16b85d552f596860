import subprocess
import sys

import jax
import pytest

from pipeline.store.errors import UsageError
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig, compute_mesh_sizes

WORK = {"seeds": 4, "batch_size": 96, "microbatches": 2}


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (MeshConfig(), (1, 8, 1, 1)),
        (MeshConfig(seed=4), (4, 2, 1, 1)),
        (MeshConfig(seed=2, data=1, fsdp=-1), (2, 1, 4, 1)),
        (MeshConfig(data=2, tensor=-1), (1, 2, 1, 4)),
    ],
)
def test_the_sizes_are_those_of_the_mesh(
    config: MeshConfig, sizes: tuple[int, ...]
) -> None:
    found = compute_mesh_sizes(config, **WORK, devices=8)
    assert found == dict(zip(("seed", "data", "fsdp", "tensor"), sizes, strict=True))
    assert dict(make_mesh(config, **WORK, devices=jax.devices()).shape) == found


@pytest.mark.parametrize(
    ("config", "work", "reason"),
    [
        (MeshConfig(data=3), {}, "mesh: expected seed .* to be the 8 devices there"),
        (MeshConfig(seed=3), {}, r"got seed=3, data=-1, .*; give the others a product"),
        (MeshConfig(seed=-1), {}, r"got seed=-1, data=-1"),
        (MeshConfig(seed=0), {}, r"got seed=0"),
        (MeshConfig(seed=8), {}, r"trainer.seeds is 4, which 8 devices \(mesh seed\)"),
        (MeshConfig(), {"batch_size": 20}, r"batch_size / trainer.microbatches is 10"),
        (
            MeshConfig(data=2, fsdp=4),
            {"batch_size": 12, "microbatches": 1},
            r"trainer.batch_size is 12, which 8 devices \(mesh data \* fsdp\)",
        ),
        (
            MeshConfig(data=2, fsdp=2, tensor=2),
            {"width": 66},
            r"agent.width is 66, which 4 devices \(mesh tensor \* fsdp\) cannot",
        ),
    ],
)
def test_what_cannot_be_shared_is_refused_in_the_same_words(
    config: MeshConfig, work: dict[str, int], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as early:
        compute_mesh_sizes(config, **(WORK | work), devices=8)
    with pytest.raises(UsageError) as late:
        make_mesh(config, **(WORK | work), devices=jax.devices())
    assert str(early.value) == str(late.value)


def test_a_mesh_is_refused_without_jax() -> None:
    program = (
        "import sys, trainer.parallel.mesh_shape as shape;"
        "shape.compute_mesh_sizes("
        "shape.MeshConfig(), seeds=1, batch_size=8, devices=8);"
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "jax" not in done.stdout.split()
