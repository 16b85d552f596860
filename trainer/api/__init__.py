"""The trainer as a library: what its commands do, as functions for other programs.

Four functions are public and stay: ``open_store``, ``train``, ``evaluate`` and
``load_policy``. The commands call them too. Importing this package does not import JAX;
each function imports what it needs when it is called.

Example:
    >>> from trainer.api import evaluate, load_policy, open_store, train
    >>> store = open_store("stores/cube-single-play")  # doctest: +SKIP
    >>> train("cube.toml", store, "runs/cube", task=1)  # doctest: +SKIP
    >>> policy = load_policy("runs/cube")  # doctest: +SKIP
    >>> action = policy.act(observation)  # doctest: +SKIP
"""

from trainer.api.evaluation import evaluate
from trainer.api.policy import LoadedPolicy, load_policy
from trainer.api.store import Trajectories, open_store
from trainer.api.training import train

__all__ = [
    "LoadedPolicy",
    "Trajectories",
    "evaluate",
    "load_policy",
    "open_store",
    "train",
]
