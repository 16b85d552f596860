import dataclasses
import subprocess
import sys

import jax
import pytest

from tests import references
from trainer.agents.registry import AGENTS, make_agent
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig
from trainer.costs.network_shapes import read_networks, vast_networks
from trainer.costs.random_data import make_shape_facts

S, A = 6, 3
SMALL = VASTConfig(width=8, depth=2)


@pytest.mark.parametrize(
    "config",
    [VASTConfig(), SMALL, dataclasses.replace(SMALL, depth=1), VASTConfig(depth=12)],
)
def test_vasts_networks_need_no_jax(config: VASTConfig) -> None:
    state = jax.eval_shape(VAST(config, make_shape_facts(S, A)).init, jax.random.key(0))
    assert vast_networks(config, observation_dim=S, action_dim=A) == (
        read_networks(state)
    )


def test_the_module_needs_none_either() -> None:
    program = (
        "import sys, trainer.costs.network_shapes, trainer.costs.flops,"
        "trainer.costs.published; print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"jax", "flax"} & set(done.stdout.split())


@pytest.mark.parametrize("name", sorted(AGENTS))
def test_every_agents_parameters_are_accounted_for(name: str) -> None:
    agent = make_agent(AGENTS[name].config(), make_shape_facts(S, A))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    found = read_networks(state)
    assert sum(network.parameters for network in found) == (
        references.count_parameters(state.params)
        + references.count_parameters(state.targets)
    )
    assert all(network.chain for network in found if network.name == "critic")


def test_layers_are_in_order_beyond_ten() -> None:
    deep = dataclasses.replace(SMALL, depth=12)
    state = jax.eval_shape(VAST(deep, make_shape_facts(S, A)).init, jax.random.key(0))
    (value,) = (network for network in read_networks(state) if network.name == "value")
    assert value.chain == (S, *(8,) * 12, 1)
