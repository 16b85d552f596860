"""Hyperparameters of VAST; points that the paper leaves open are options."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from trainer.agents.settings import (
    AgentSettings,
    Count,
    Decay,
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
from trainer.errors import ConfigError
from trainer.nn.choices import Aggregation, Precision, StateScaling

Success = Literal["ends", "mixed"]


@dataclass(frozen=True)
class VASTConfig(AgentSettings):
    """Hyperparameters; defaults are the paper's general ones (appendix B).

    Attributes:
        name: Name of the agent.
        discount: Discount of rewards; the store must hold its return sums.
        max_horizon: Largest horizon K of a stitched segment.
        min_horizon: Shortest recorded segment: 2 as in the paper's appendix B, or 1 as
            in its eq. 8.
        temperature: β of the stitching policy's weight ``exp(β * advantage)``.
        candidates: Actions N_rej that are drawn at a step; the best by Q is executed.
        width: Width of every hidden layer.
        depth: Number of hidden layers.
        learning_rate: Learning rate of Adam, for all networks.
        clip_norm: Largest global norm of the gradient.
        target_rate: Rate of the soft update of the target critics.
        ema_decay: Decay of the moving average of parameters that acts, see
            ``step.update``; 0 acts with the trained parameters, as the paper does.
        expectile: Expectile τ of the value loss.
        value_windows: Windows whose values V regresses on: ``"drawn"`` from the
            stitching policy, as in the paper, or the ``"recorded"`` ones of the batch,
            whose values the advantage has as well.
        composition: Weight λ of the compositional loss of G.
        flow_steps: Euler steps of a flow sample.
        max_weight: Largest weight of a sample in the stitching loss.
        goal_current: Share of goals that are the current state.
        goal_future: Share of goals that are a later state of the episode.
        goal_random: Share of goals that are any state of the data.
        goal_rule: Distribution of later states: ``"horizon"``, uniform over the next K
            rows; ``"uniform"`` over the rest of the episode, as the paper says; or
            ``"geometric"`` with the discount.
        aggregation: Reduction of the two critics, for continuations and for choosing
            actions: ``"min"`` or ``"mean"``.
        weight_form: Weight of the stitching loss: ``"exp_beta"`` is ``exp(β * adv)``
            (eq. 28), ``"beta_exp"`` is ``β * exp(adv)`` (eq. 19).
        advantage_return: Return of the window within the advantage, and within V's
            target if ``value_windows`` is ``"recorded"``: ``"model"`` is G's estimate,
            ``"data"`` is the recorded return.
        composed_gradient: Whether gradients flow through the composed side of the
            compositional loss.
        success: Meaning of a solved state to V: ``"ends"``, an end of the episode, as
            it is to Q and G; or ``"mixed"``, where windows lead past it and V alone
            continues from it.
        terminal_starts: Whether, where success ends an episode, the last transition of
            an episode is a window of one step if it is terminal. The paper's windows
            have two steps, and Q never sees the reward of such a transition. With a
            ``min_horizon`` of 1 it is a window either way.
        state_scaling: Scaling of states for networks and flows, see
            ``agents.base.observation_scale``.
        precision: Precision of the hidden layers' products, see ``nn.networks.MLP``.
        rematerialise: Whether gradients evaluate networks again, one evaluation at a
            time, instead of keeping the outputs of layers; saves memory.
    """

    # How the paper's open points were decided; figures of the comparisons are in
    # tests/benchmarks/README.md under "VAST's open points".
    #
    # - goal_rule: "uniform" is the paper's "randomly sampled future goal state". But
    #   the policy pursues sub-goals within K rows, and "uniform" draws few of those. A
    #   maze is solved with "horizon" and seldom with "uniform", and with "geometric" in
    #   twice as many steps. On a cube the first two act alike.
    # - aggregation: the paper does not say, and the minimum is the cautious reading.
    #   With the mean, V lay above the best return a little more often on the 4x4 grid,
    #   at the edge of what eight seeds can tell.
    # - weight_form: eq. 28 is the closed form that the paper derives. Under eq. 19, as
    #   the loss is printed, β only scales the loss, and Adam undoes that.
    # - advantage_return: weights were a little larger with the recorded return;
    #   nothing else was separable.
    # - composed_gradient: True is the equation as written. Without it, and unless
    #   min_horizon is 1, only windows that success cuts short train G(., ., 1): its
    #   error was several times as large, and V lower. With windows of one step G was
    #   better without.
    # - success: the paper has no terminal states at all. "mixed" is neither the value
    #   of a task that ends at success nor of one that goes on: on a chain through its
    #   goal its fixed point is -83 one step before the goal, not -1.
    # - terminal_starts: the paper's data go on after success, so that a solved row has
    #   successors. Data of transitions end there.
    # - value_windows: "drawn" is the paper's. Narrow networks draw blurred sub-goals,
    #   and V then did not say which button of a puzzle is pressed next: "recorded"
    #   solved half of the episodes, and "drawn" none. In a maze "recorded" took twice
    #   as many steps; on a scene and a cube the two act alike.
    # - state_scaling: raw states (standard deviation 6) fitted worse than scaled ones
    #   in a maze with narrow networks. On cube-single-play "common" and raw were not
    #   separable, and "standard" fitted sub-goals better. The paper's sizes were not
    #   tried.

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
    ema_decay: Decay = 0.0
    expectile: Share = 0.9
    value_windows: Literal["drawn", "recorded"] = "drawn"
    composition: NotNegative = 0.5
    flow_steps: Count = 10
    max_weight: Positive = 100.0
    goal_current: Probability = 0.1
    goal_future: Probability = 0.8
    goal_random: Probability = 0.1
    goal_rule: GoalRule = "horizon"
    aggregation: Aggregation = "min"
    weight_form: Literal["exp_beta", "beta_exp"] = "exp_beta"
    advantage_return: Literal["model", "data"] = "model"
    composed_gradient: bool = True
    success: Success = "ends"
    terminal_starts: bool = True
    state_scaling: StateScaling = "none"
    precision: Precision = "float32"
    rematerialise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        # Returns of recorded windows end at success, and so would V.
        if (self.success, self.value_windows) == ("mixed", "recorded"):
            raise ConfigError(
                "agent.value_windows: expected 'drawn' where agent.success is 'mixed', "
                "got 'recorded'; set agent.success to 'ends'"
            )
        # All weights would be 0, so that the policy over sub-goals never learns.
        if self.weight_form == "beta_exp" and self.temperature == 0:
            raise ConfigError(
                "agent.temperature: expected more than 0 where agent.weight_form is "
                "'beta_exp', whose weights are multiples of it, got 0; raise it"
            )
        # The sampler checks that the shares of goals sum to 1.
        self.make_sampler()

    def make_sampler(self) -> HorizonSampler:
        """Builds the sampler of windows.

        Raises:
            ConfigError: If the sampler refuses the horizons or the shares of goals.
        """
        kind: Callable[..., HorizonSampler] = HorizonSampler
        if self.success == "ends":
            kind = partial(EndingHorizonSampler, terminal_starts=self.terminal_starts)
        return kind(
            max_horizon=self.max_horizon,
            discount=self.discount,
            min_horizon=self.min_horizon,
            goal_shares=(self.goal_current, self.goal_future, self.goal_random),
            goal_rule=self.goal_rule,
        )
