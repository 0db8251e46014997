"""Balancing policies: how to split a batch over the workers.

A policy is told who the members are and what each finished iteration showed, and answers with counts.
It has no clock and no wire. To add one, write a module with a class that satisfies `Policy` and name it
in `POLICIES`.
"""

from collections.abc import Callable

from batchsize_manager.policies.base import Member, Observation, Policy, Split
from batchsize_manager.policies.even import Even
from batchsize_manager.policies.leader_straggler import LeaderStraggler
from batchsize_manager.policies.proportional import Proportional
from predictors import PREDICTORS

POLICIES: dict[str, Callable[[str], Policy]] = {
    "even": lambda predictor: Even(),
    "proportional": lambda predictor: Proportional(PREDICTORS[predictor]()),
    "leader_straggler": lambda predictor: LeaderStraggler(),
}


def make_policy(name: str, predictor: str = "ema") -> Policy:
    """A new policy of the given name; `predictor` is for those that predict.

    Raises:
        ValueError: There is no such policy or predictor.
    """
    if name not in POLICIES:
        raise ValueError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    if predictor not in PREDICTORS:
        raise ValueError(f"no predictor {predictor!r}; there are {', '.join(PREDICTORS)}")
    return POLICIES[name](predictor)


__all__ = ["POLICIES", "Member", "Observation", "Policy", "Split", "make_policy"]
