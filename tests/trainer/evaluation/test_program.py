"""Exported programs: run without this package, and equal to the loaded policy."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline.output import Output
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError
from tests.runs import CONFIG, FakeTrainer, make_run
from trainer.agents.iql_config import IQLConfig
from trainer.agents.registry import AGENTS
from trainer.api import LoadedPolicy, load_policy
from trainer.commands.checkpoint import ExportCheckpoint

OBSERVATIONS = np.random.default_rng(5).normal(size=(3, 2)).astype(np.float32)
EPISODES, STEPS = np.array([0, 1, 5], np.uint32), np.array([0, 4, 2], np.uint32)
SCALE = ActionScale((-2.0, 0.0), (2.0, 1.0))

# Everything of ours and of its libraries but JAX cannot be imported.
ALONE = """
import sys
for name in ("pipeline", "trainer", "infra", "flax", "optax", "grain", "orbax"):
    sys.modules[name] = None
import json, sys
import jax.export
import numpy as np
policy = jax.export.deserialize(open(sys.argv[1], "rb").read())
asked = json.loads(sys.argv[2])
actions = policy.call(
    np.array(asked["observations"], np.float32), np.uint32(asked["seed"]),
    np.array(asked["episodes"], np.uint32), np.array(asked["steps"], np.uint32),
)
print(json.dumps([policy.platforms, np.asarray(actions).tolist()]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seeds 3 and 4, whose actions are scaled."""
    out = tmp_path_factory.mktemp("runs") / "run"
    config = dataclasses.replace(CONFIG, agent=IQLConfig(width=8, depth=1))
    run = dataclasses.replace(make_run(), config=config, action_scale=SCALE)
    trainer = FakeTrainer(out, run=run, between=(-0.5, 0.5))
    trainer.commit(20)
    trainer.close()
    return out


def test_a_program_acts_without_this_package(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.stablehlo"
    export = ExportCheckpoint(str(folder), file, format="stablehlo", seed=4)
    assert export.execute(Output.silent()) == 0
    asked = {
        "observations": OBSERVATIONS.tolist(),
        "seed": 7,
        "episodes": EPISODES.tolist(),
        "steps": STEPS.tolist(),
    }
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(file), json.dumps(asked)],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    platforms, actions = json.loads(done.stdout)
    assert platforms == ["cpu", "cuda", "tpu"]
    policy = load_policy(str(folder), training_seed=4, seed=7)
    expected = policy.plan(OBSERVATIONS, episodes=EPISODES, steps=STEPS)
    assert expected.shape == (3, 1, 2)
    assert np.ptp(expected, axis=0).min() > 1e-3
    np.testing.assert_allclose(actions, expected, rtol=1e-5, atol=1e-6)


def test_the_card_s_program_runs(folder: Path, tmp_path: Path, monkeypatch) -> None:
    ExportCheckpoint(str(folder), tmp_path / "p", format="stablehlo").execute(
        Output.silent()
    )
    card = (tmp_path / "README.md").read_text()
    assert "holds training seed 3." in card
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    told: dict = {}
    exec(code, told)
    expected = load_policy(str(folder)).plan(np.zeros((1, 2)))
    np.testing.assert_allclose(told["actions"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.slow
def test_every_agent_is_exported(name: str) -> None:
    settings = {"width": 8, "depth": 1}
    if name.endswith("-n"):
        settings["n_step"] = 3
    agent = AGENTS[name].config(name=name, **settings)
    run = dataclasses.replace(
        make_run(), config=dataclasses.replace(CONFIG, agent=agent), action_scale=SCALE
    )
    shapes = jax.eval_shape(run.agent().init, jax.random.key(0)).params
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.uniform(-0.5, 0.5, leaf.shape).astype(leaf.dtype), shapes
    )
    policy = LoadedPolicy(run, params, step=0, training_seed=3, seed=7)
    expected = policy.plan(OBSERVATIONS, episodes=EPISODES, steps=STEPS)
    program = jax.export.deserialize(bytearray(policy.export()))
    for rows in (1, 3):  # One program for any number of them.
        acted = program.call(
            OBSERVATIONS[:rows], np.uint32(7), EPISODES[:rows], STEPS[:rows]
        )
        np.testing.assert_allclose(acted, expected[:rows], rtol=1e-4, atol=1e-5)


def test_mistakes_are_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.stablehlo"

    def export(**options: int) -> None:
        ExportCheckpoint(str(folder), file, "stablehlo", **options).execute(
            Output.silent()
        )

    with pytest.raises(DataFormatError, match="step to be one of 20, got 15"):
        export(step=15)
    with pytest.raises(DataFormatError, match="seed to be one of 3, 4, got 0"):
        export(seed=0)
    assert list(tmp_path.iterdir()) == []
    file.write_text("precious")
    with pytest.raises(DataFormatError, match="exists; give another --out"):
        export()
    assert file.read_text() == "precious"
