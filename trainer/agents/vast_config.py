"""Hyperparameters of VAST, with our reading of every point the paper leaves open."""

from dataclasses import dataclass
from typing import Annotated, Literal

from trainer.agents.settings import (
    AgentSettings,
    Count,
    Fraction,
    NotNegative,
    Positive,
    Probability,
    Range,
    Share,
)
from trainer.data.horizon_windows import (
    EndingHorizonSampler,
    GoalRule,
    HorizonSampler,
)
from trainer.nn.choices import Aggregation, Precision

Success = Literal["ends", "mixed"]


@dataclass(frozen=True)
class VASTConfig(AgentSettings):
    """Hyperparameters; defaults are the paper's general ones (appendix B).

    Where readings were compared, the figures are in tests/benchmarks/README.md.

    Attributes:
        name: Of the agent.
        discount: Of rewards; the store must hold its return sums.
        max_horizon: K, largest horizon of a stitched segment.
        min_horizon: Shortest recorded segment: 2 as the paper's appendix B samples
            (default), or 1 as its eq. 8 is written.
        temperature: β of the stitching policy's weight ``exp(β * advantage)``.
        candidates: N_rej, actions drawn at a step, of which the best by Q acts.
        width: Of every hidden layer.
        depth: Hidden layers.
        learning_rate: Of Adam, for all networks.
        clip_norm: Largest global norm of the gradient.
        target_rate: Of the soft update of the target critics, from the new critics.
        expectile: τ of the value loss.
        composition: λ, weight of the compositional loss of G.
        flow_steps: Euler steps of a flow sample.
        max_weight: Largest weight of a sample in the stitching loss.
        goal_current: Share of goals that are the current state.
        goal_future: Share of goals from later in the episode.
        goal_random: Share of goals that are any state of the data.
        goal_rule: Which later state: ``"uniform"`` over the rest of the episode (the
            paper's "randomly sampled future goal state"), ``"geometric"`` with the
            discount, or ``"horizon"``, uniform over the next K rows. The last imitated
            best towards goals within K rows; which rule acts best was not separable.
        aggregation: Of the critics, for continuations and for choosing actions. The
            paper does not say; the minimum is the cautious reading. With the mean, V
            lay above the best return a little more often on the 4x4 grid, at the edge
            of what eight seeds tell apart.
        weight_form: ``"exp_beta"`` is ``exp(β * adv)``, the paper's closed form (eq.
            28); ``"beta_exp"`` is ``β * exp(adv)`` as its loss is printed (eq. 19),
            under which β only scales the loss, and Adam undoes that.
        advantage_return: The window's return within the advantage: ``"model"`` is
            G's estimate, ``"data"`` the recorded one: weights were a little larger
            with it, nothing else was separable.
        composed_gradient: Whether the composed side of the compositional loss is
            trained too, as the equation is written. Without it nothing trains
            ``G(., ., 1)``, unless ``min_horizon`` is 1: its error was several times
            as large, and V lower. With windows of one step G was better without.
        success: What a solved state is to V: ``"ends"``, an end as it is to Q and G, so
            that no window goes past one and nothing is continued from one; or
            ``"mixed"``, where windows lead past it and V alone goes on, and is neither
            of a task that ends there nor of one that does not.
        state_scaling: How networks and flows see states, see
            ``agents.base.observation_scale``. In short runs of narrow networks raw
            states, of deviation 6, fitted worse than scaled ones in a maze; on
            cube-single-play ``"common"`` and raw were not separable, and
            ``"standard"`` fitted sub-goals better. The paper's sizes were not tried.
        precision: Of the hidden layers' products, see ``nn.networks.MLP``.
        rematerialise: Whether gradients compute what networks and flow samplers did
            anew, evaluation by evaluation, where keeping it takes too much memory.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: Literal["vast"] = "vast"
    discount: Fraction = 0.99
    max_horizon: Annotated[int, Range(least=2)] = 25
    min_horizon: Annotated[int, Range(least=1, most=2)] = 2
    temperature: NotNegative = 0.05
    candidates: Count = 4
    width: Count = 512
    depth: Count = 4
    learning_rate: Positive = 3e-4
    clip_norm: Positive = 1.0
    target_rate: Fraction = 0.005
    expectile: Share = 0.9
    composition: NotNegative = 0.5
    flow_steps: Count = 10
    max_weight: Positive = 100.0
    goal_current: Probability = 0.1
    goal_future: Probability = 0.8
    goal_random: Probability = 0.1
    goal_rule: GoalRule = "uniform"
    aggregation: Aggregation = "min"
    weight_form: Literal["exp_beta", "beta_exp"] = "exp_beta"
    advantage_return: Literal["model", "data"] = "model"
    composed_gradient: bool = True
    success: Success = "ends"
    state_scaling: Literal["none", "common", "standard"] = "none"
    precision: Precision = "float32"
    rematerialise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Shares of goals have to sum to 1, which the sampler knows.
        self.make_sampler()

    def make_sampler(self) -> HorizonSampler:
        """Makes the sampler of windows; raises ConfigError for what there cannot be."""
        kind = EndingHorizonSampler if self.success == "ends" else HorizonSampler
        return kind(
            max_horizon=self.max_horizon,
            discount=self.discount,
            min_horizon=self.min_horizon,
            goal_shares=(self.goal_current, self.goal_future, self.goal_random),
            goal_rule=self.goal_rule,
        )
