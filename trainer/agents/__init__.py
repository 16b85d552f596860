"""The agents by name."""

from dataclasses import dataclass
from typing import Any

from trainer.agents.base import Agent, DataFacts
from trainer.agents.floq import Floq, FloqConfig
from trainer.agents.fql import FQL, FQLConfig
from trainer.agents.ifql import IFQL, IFQLConfig
from trainer.agents.iql import IQL, IQLConfig
from trainer.agents.qc import QC, QCConfig
from trainer.agents.value_flows import ValueFlows, ValueFlowsConfig
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig

AgentConfig = (
    VASTConfig
    | IQLConfig
    | FQLConfig
    | IFQLConfig
    | QCConfig
    | ValueFlowsConfig
    | FloqConfig
)


@dataclass(frozen=True)
class AgentKind:
    """One entry of ``AGENTS``.

    Attributes:
        config: Type of its hyperparameters.
        agent: Its class, made from configuration and facts.
    """

    config: type[Any]
    agent: type[Any]


AGENTS: dict[str, AgentKind] = {
    "vast": AgentKind(config=VASTConfig, agent=VAST),
    "iql": AgentKind(config=IQLConfig, agent=IQL),
    "fql": AgentKind(config=FQLConfig, agent=FQL),
    "ifql": AgentKind(config=IFQLConfig, agent=IFQL),
    "fql-n": AgentKind(config=FQLConfig, agent=FQL),
    "ifql-n": AgentKind(config=IFQLConfig, agent=IFQL),
    "qc": AgentKind(config=QCConfig, agent=QC),
    "value-flows": AgentKind(config=ValueFlowsConfig, agent=ValueFlows),
    "floq": AgentKind(config=FloqConfig, agent=Floq),
}
DEFAULT_AGENT = "vast"


def make_agent(config: AgentConfig, facts: DataFacts) -> Agent:
    """Builds the agent that a configuration names.

    Args:
        config: Hyperparameters of one of ``AGENTS``.
        facts: Of the data set and task.

    Returns:
        The agent.
    """
    agent: Agent = AGENTS[config.name].agent(config, facts)
    return agent
