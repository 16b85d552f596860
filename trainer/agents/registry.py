"""The agents by name: the only list of them, which configurations and commands read.

Agents of other installed packages are added to it, see ``ENTRY_POINTS``. Settings are
imported here, an algorithm only when its class is asked for. Settings need no JAX, so
that a launcher can read configurations where nothing is trained.
"""

import functools
import importlib.metadata
import operator
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from trainer.agents.floq_config import FloqConfig
from trainer.agents.fql_config import FQLConfig
from trainer.agents.ifql_config import IFQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.agents.qc_config import QCConfig
from trainer.agents.settings import AgentKind, AgentSettings
from trainer.agents.value_flows_config import ValueFlowsConfig
from trainer.agents.vast_config import VASTConfig
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.agents.base import Agent, DataFacts


# A package adds agents to the list by entry points of this group; each of them names an
# `AgentKind`.
ENTRY_POINTS = "vast_rl.agents"

_KINDS = (
    AgentKind(VASTConfig, "trainer.agents.vast:VAST"),
    AgentKind(IQLConfig, "trainer.agents.iql:IQL"),
    AgentKind(FQLConfig, "trainer.agents.fql:FQL"),
    AgentKind(IFQLConfig, "trainer.agents.ifql:IFQL"),
    AgentKind(QCConfig, "trainer.agents.qc:QC"),
    AgentKind(ValueFlowsConfig, "trainer.agents.value_flows:ValueFlows"),
    AgentKind(FloqConfig, "trainer.agents.floq:Floq"),
)


def _load_installed(
    points: Iterable[importlib.metadata.EntryPoint],
) -> Iterator[AgentKind]:
    """Loads the agents that installed packages add."""
    for point in points:
        where = f"entry point {point.name} = {point.value} of {ENTRY_POINTS}"
        try:
            kind = point.load()
        except Exception as error:  # Another package's module may raise anything.
            raise ConfigError(
                f"{where}: cannot be loaded ({type(error).__name__}: {error}); correct "
                "or uninstall the package that declares it"
            ) from error
        if not isinstance(kind, AgentKind) or not kind.names:
            raise ConfigError(
                f"{where}: expected an AgentKind with settings whose `name` is a "
                f"Literal, got {kind!r:.200}; correct or uninstall the package that "
                "declares it"
            )
        yield kind


def _by_name(kinds: Iterable[AgentKind]) -> dict[str, AgentKind]:
    """Returns each agent by its name, and refuses a second one of a name."""
    agents: dict[str, AgentKind] = {}
    for kind in kinds:
        for name in kind.names:
            if name in agents:
                raise ConfigError(
                    f"agent {name!r}: expected one agent of this name, got "
                    f"{agents[name].path} and {kind.path}; rename one of them, or "
                    "uninstall its package"
                )
            agents[name] = kind
    return agents


_ALL = (
    *_KINDS,
    *_load_installed(importlib.metadata.entry_points(group=ENTRY_POINTS)),
)
AGENTS = _by_name(_ALL)
DEFAULT_AGENT = "vast"

# Type checkers cannot evaluate a union that is computed from a list, so they see the
# settings that all agents have instead.
if TYPE_CHECKING:
    AgentConfig = AgentSettings
else:
    # Hyperparameters of any agent: a configuration is decoded by this union.
    AgentConfig = functools.reduce(operator.or_, (kind.config for kind in _ALL))


def make_agent(config: AgentConfig, facts: "DataFacts") -> "Agent[Any]":
    """Builds the agent that a configuration names.

    Args:
        config: Hyperparameters of one of ``AGENTS``.
        facts: Facts of the data set and task.

    Returns:
        The agent.
    """
    agent: Agent[Any] = AGENTS[config.name].agent(config, facts)
    return agent
