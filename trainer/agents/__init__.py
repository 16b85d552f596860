"""The agents by name."""

from dataclasses import dataclass
from typing import Any

from trainer.agents.base import Agent, DataFacts
from trainer.agents.vast import VAST
from trainer.agents.vast_config import VASTConfig

AgentConfig = VASTConfig


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
}


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
