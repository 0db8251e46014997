"""Balancing policies: how to split a batch over the workers.

A policy takes the members and the measurements of each complete iteration, and returns counts, in units of a
sample or a whole micro-batch. It has no clock and no wire. To add one, write a module with a subclass of
`Policy` and name it in `POLICIES`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

from batchsize_manager.policies.at_once import MODEL as AT_ONCE
from batchsize_manager.policies.at_once import Gains, SeveralAtOnce
from batchsize_manager.policies.base import Participant, Policy, Split
from batchsize_manager.policies.even import Even
from batchsize_manager.policies.leader_straggler import STEP_SIZE, LeaderStraggler
from batchsize_manager.policies.learned import Learned
from batchsize_manager.policies.model_registry import ModelRegistry, RegistryPolicy
from batchsize_manager.policies.overlap import Overlap
from batchsize_manager.policies.proportional import Proportional
from idl.settings import Setting, check_settings
from predictors import PREDICTORS, Models, Predictor, PredictorOptions, make_predictor

Tolerance = Annotated[
    float,
    Setting("Keep batch sizes while they are predicted to be this close to the best.", least=0, below=1),
]


@dataclass(frozen=True)
class PolicyOptions:
    """The options of policies; each policy takes those that it has a use for.

    Raises:
        ValueError: A value is not allowed.
    """

    # A name in `predictors.PREDICTORS`.
    predictor: Annotated[
        str,
        Setting(
            "How the policy proportional predicts speeds: the last one stays (memoryless), a moving average "
            "(ema), models that are fitted while the job runs (arima, simple_rnn, lstm, narx, arx), or the "
            "mean of narx, arx, ema and memoryless by their recent errors (auto).",
            choices=PREDICTORS,
        ),
    ] = "auto"
    tolerance: Tolerance = 0.0  # as a share of the best split's time; see `Proportional` and `Learned`
    learning: PredictorOptions = field(default_factory=PredictorOptions)  # options of predictors that learn
    # Fitted models, from which policies start for workers that join; see `make_job_policy`.
    models: Models = field(default_factory=dict)
    # What several micro-batches at once gain; see `make_job_policy`.
    gains: Gains = field(default_factory=Gains)
    step_size: Annotated[
        int,
        Setting(
            "Samples that the policy leader_straggler moves at a time, until it has come past the "
            "equilibrium.",
            least=1,
        ),
    ] = STEP_SIZE

    def __post_init__(self) -> None:
        check_settings(self)
        self.make_predictor()  # raises ValueError

    def make_predictor(self) -> Predictor:
        """Make the predictor that these options name."""
        return make_predictor(self.predictor, self.learning, self.models)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "even": lambda options: Even(),
    "proportional": lambda options: Proportional(options.make_predictor(), options.tolerance),
    "leader_straggler": lambda options: LeaderStraggler(options.step_size),
    "learned": lambda options: Learned(options.tolerance, options.models, options.gains),
    "overlap": lambda options: Overlap(options.tolerance, options.models, options.gains),
}

POLICIES_WITH_PREDICTOR = frozenset({"proportional"})
"""Names of the policies that split by predicted speeds."""


def make_policy(name: str, options: PolicyOptions | None = None) -> Policy:
    """Make a new policy of the given name, with the options that it has a use for.

    Raises:
        ValueError: There is no such policy, or a model is not of its form.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](options or PolicyOptions())


def make_job_policy(name: str, options: PolicyOptions | None = None, models: Models | None = None) -> Policy:
    """Make a policy that keeps the models of workers that left and of kinds of devices.

    It also chooses how many micro-batches each worker computes at once, in a job with micro-batches.

    Args:
        name: A name in `POLICIES`.
        models: The registry's first models; None: those of the options.

    Raises:
        ValueError: There is no such policy, or a model is not of its form.
    """
    options = options or PolicyOptions()
    registry = ModelRegistry(options.models if models is None else models)
    gains = Gains(registry[AT_ONCE])
    policy = make_policy(name, replace(options, models=registry, gains=gains))
    return RegistryPolicy(SeveralAtOnce(policy, gains), registry)


__all__ = [
    "POLICIES",
    "POLICIES_WITH_PREDICTOR",
    "Participant",
    "Policy",
    "PolicyOptions",
    "Split",
    "make_job_policy",
    "make_policy",
]
