"""The agents by name: the only list of them, which configurations and commands read.

Settings are imported here, an algorithm only when its class is asked for. Settings need
no JAX, so that a launcher can read configurations where nothing is trained.
"""

import functools
import importlib
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from trainer.agents.floq_config import FloqConfig
from trainer.agents.fql_config import FQLConfig
from trainer.agents.ifql_config import IFQLConfig
from trainer.agents.iql_config import IQLConfig
from trainer.agents.qc_config import QCConfig
from trainer.agents.settings import AgentSettings
from trainer.agents.value_flows_config import ValueFlowsConfig
from trainer.agents.vast_config import VASTConfig

if TYPE_CHECKING:
    from trainer.agents.base import Agent, DataFacts


@dataclass(frozen=True)
class AgentKind:
    """One algorithm.

    Attributes:
        config: Type of the hyperparameters; the choices of its field ``name`` are the
            names of the algorithm.
        path: Module in this package and class, as ``"module:Class"``; the class is
            built from a configuration and the facts of the data.
    """

    config: type[Any]
    path: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the algorithm, such as one for returns of several steps."""
        return get_args(get_type_hints(self.config)["name"])

    @property
    def agent(self) -> type[Any]:
        """Class of the algorithm; reading this property imports JAX."""
        module, _, name = self.path.partition(":")
        kind: type[Any] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
        return kind


_KINDS = (
    AgentKind(VASTConfig, "vast:VAST"),
    AgentKind(IQLConfig, "iql:IQL"),
    AgentKind(FQLConfig, "fql:FQL"),
    AgentKind(IFQLConfig, "ifql:IFQL"),
    AgentKind(QCConfig, "qc:QC"),
    AgentKind(ValueFlowsConfig, "value_flows:ValueFlows"),
    AgentKind(FloqConfig, "floq:Floq"),
)
AGENTS = {name: kind for kind in _KINDS for name in kind.names}
DEFAULT_AGENT = "vast"

# Type checkers cannot evaluate a union that is computed from a list, so they see the
# settings that all agents have instead.
if TYPE_CHECKING:
    AgentConfig = AgentSettings
else:
    # Hyperparameters of any agent: a configuration is decoded by this union.
    AgentConfig = functools.reduce(operator.or_, (kind.config for kind in _KINDS))


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
