"""Loaded policies, compared with the agent called with the keys of an evaluation."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from tests.runs import CONFIG, FakeTrainer, make_run
from trainer.agents.qc_config import QCConfig
from trainer.api import LoadedPolicy, load_policy
from trainer.evaluation.rollouts import make_acting_key
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import RunFolder

SCALE = ActionScale((-2.0, 0.0), (2.0, 1.0))
# QC plans several actions at once, and draws noise for them.
RUN = dataclasses.replace(
    make_run(),
    config=dataclasses.replace(
        CONFIG, agent=QCConfig(width=8, depth=1, flow_steps=2, n_step=3, candidates=2)
    ),
    action_scale=SCALE,
)
OBSERVATIONS = np.random.default_rng(5).normal(size=(8, 2)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seeds 3 and 4 with two checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "run"
    trainer = FakeTrainer(out, run=RUN, between=(-0.5, 0.5))
    trainer.commit(10)
    trainer.commit(20)
    trainer.close()
    return out


@pytest.fixture(scope="module")
def policy(folder: Path) -> LoadedPolicy:
    return load_policy(str(folder), training_seed=4, seed=7)


def plan_of_agent(folder: Path, episode: int, step: int, row: int) -> np.ndarray:
    """Plans with the agent itself and seed 4's parameters, in the data's units."""
    with CheckpointReader(RunFolder.open(folder)) as checkpoints:
        params = checkpoints.restore_params(20, RUN.agent(), seeds=2)
    one = jax.tree.map(lambda leaf: leaf[1], params)
    key = make_acting_key(np.uint32(7), np.uint32(episode), np.uint32(step))
    actions = jax.jit(RUN.agent().act)(one, OBSERVATIONS[row], key)
    return SCALE.from_unit(np.asarray(actions))


def test_actions_are_the_agent_s(folder: Path, policy: LoadedPolicy) -> None:
    assert (policy.step, policy.training_seed, policy.chunk) == (20, 4, 3)
    policy.reset(2)
    acted = np.stack([policy.act(observation) for observation in OBSERVATIONS[:4]])
    assert (acted.shape, acted.dtype) == ((4, 2), np.float32)
    # Three actions are planned at step 0 and taken; step 3 plans three others.
    expected = np.concatenate(
        [plan_of_agent(folder, 2, 0, 0), plan_of_agent(folder, 2, 3, 3)[:1]]
    )
    assert np.ptp(expected, axis=0).min() > 1e-3
    np.testing.assert_allclose(acted, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_acts_as_its_rows_do(policy: LoadedPolicy) -> None:
    policy.reset([5, 6])
    together = np.stack([policy.act(OBSERVATIONS[[s, s + 4]]) for s in range(4)])
    assert together.shape == (4, 2, 2)
    for row, episode in enumerate((5, 6)):
        policy.reset(episode)
        alone = [policy.act(OBSERVATIONS[s + 4 * row]) for s in range(4)]
        np.testing.assert_allclose(together[:, row], alone, rtol=1e-5, atol=1e-6)
    planned = policy.plan(OBSERVATIONS[[0, 4]], episodes=[5, 6])
    np.testing.assert_array_equal(planned[:, 0], together[0])


def test_the_same_is_done_again_and_else_with_other_seeds(
    folder: Path, policy: LoadedPolicy
) -> None:
    policy.reset(1)
    first = policy.act(OBSERVATIONS[0])
    policy.reset(1)
    np.testing.assert_array_equal(policy.act(OBSERVATIONS[0]), first)
    fresh = load_policy(str(folder), 20, training_seed=4, seed=7)
    fresh.reset(1)
    np.testing.assert_array_equal(fresh.act(OBSERVATIONS[0]), first)
    others = (
        load_policy(str(folder), training_seed=4, seed=8),
        load_policy(str(folder), training_seed=3, seed=7),
        load_policy(str(folder), 10, training_seed=4, seed=7),
    )
    for other in others:
        other.reset(1)
        assert (other.act(OBSERVATIONS[0]) != first).any()


def test_dictionaries_are_laid_out_as_in_the_data(policy: LoadedPolicy) -> None:
    policy.reset()
    x, y = OBSERVATIONS[0]
    from_dictionary = policy.act({"y": [y], "x": [x]})
    policy.reset()
    np.testing.assert_array_equal(from_dictionary, policy.act(OBSERVATIONS[0]))


def test_mistakes_say_what_was_expected(folder: Path, policy: LoadedPolicy) -> None:
    with pytest.raises(UsageError, match=r"shape \[2\] or \[B, 2\], .* got \[3\]"):
        policy.act(np.zeros(3))
    policy.reset([0, 1])
    with pytest.raises(UsageError, match=r"expected 2 of them, .* got 1; .* reset"):
        policy.act(OBSERVATIONS[0])
    with pytest.raises(UsageError, match="expected a number from 0"):
        policy.reset(-1)
    with pytest.raises(UsageError, match=r"seed: expected 0 to"):
        load_policy(str(folder), seed=-1)
    with pytest.raises(DataFormatError, match="step to be one of 10, 20, got 15"):
        load_policy(str(folder), 15)
    with pytest.raises(DataFormatError, match="seed to be one of 3, 4, got 0"):
        load_policy(str(folder), training_seed=0)
    with pytest.raises(DataFormatError, match="expected checkpoints of a run"):
        load_policy(str(folder / "nowhere"))
