"""Balancing policies: how to split a batch over the workers.

A policy is told who the members are and what each finished iteration showed, and answers with counts.
It has no clock and no wire. To add one, write a module with a subclass of `Policy` and name it in
`POLICIES`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from batchsize_manager.policies.base import Observation, Participant, Policy, Split
from batchsize_manager.policies.even import Even
from batchsize_manager.policies.leader_straggler import STEP_SIZE, LeaderStraggler
from batchsize_manager.policies.learned import Learned
from batchsize_manager.policies.proportional import Proportional
from batchsize_manager.policies.remembering import Known, Remembering
from predictors import Models, Predictor, PredictorOptions, make_predictor


@dataclass(frozen=True)
class PolicyOptions:
    """What a policy may be given.

    Attributes:
        predictor: A name in `predictors.PREDICTORS`.
        tolerance: How much slower than the best a split may be before it is changed; see `Proportional`
            and `Learned`.
        learning: For predictors that learn.
        models: Where policies look up what has been learnt of those who join; see `make_remembering`.
        step_size: Samples that `leader_straggler` moves at a time at first; see `LeaderStraggler`.

    Raises:
        ValueError: A value is not allowed.
    """

    predictor: str = "ema"
    tolerance: float = 0.0
    learning: PredictorOptions = field(default_factory=PredictorOptions)
    models: Models = field(default_factory=dict)
    step_size: int = STEP_SIZE

    def __post_init__(self) -> None:
        self.make_predictor()  # raises ValueError
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance {self.tolerance}: must be at least 0 and below 1")
        if self.step_size < 1:
            raise ValueError(f"step_size {self.step_size}: must be at least 1")

    def make_predictor(self) -> Predictor:
        """A new predictor as these options say."""
        return make_predictor(self.predictor, self.learning, self.models)


POLICIES: dict[str, Callable[[PolicyOptions], Policy]] = {
    "even": lambda options: Even(),
    "proportional": lambda options: Proportional(options.make_predictor(), options.tolerance),
    "leader_straggler": lambda options: LeaderStraggler(options.step_size),
    "learned": lambda options: Learned(options.tolerance, options.models),
}

PREDICTING = frozenset({"proportional"})  # the policies that go by a predictor


def make_policy(name: str, options: PolicyOptions | None = None) -> Policy:
    """A new policy of the given name; the options are for those that have a use for them.

    Raises:
        ValueError: There is no such policy.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name](options or PolicyOptions())


def make_remembering(name: str, options: PolicyOptions | None = None, models: Models | None = None) -> Policy:
    """A new policy that keeps what it learns of those who go, and of kinds of devices; see `Known`.

    Args:
        name: Of the policy.
        options: For it.
        models: What is known to begin with; None: that of the options.

    Raises:
        ValueError: There is no such policy, or the models are not of its form.
    """
    options = options or PolicyOptions()
    known = Known(options.models if models is None else models)
    return Remembering(make_policy(name, replace(options, models=known)), known)


__all__ = [
    "POLICIES",
    "PREDICTING",
    "Observation",
    "Participant",
    "Policy",
    "PolicyOptions",
    "Split",
    "make_policy",
    "make_remembering",
]
