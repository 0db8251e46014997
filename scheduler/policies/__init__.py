"""Policies that give the devices of a cluster to jobs: one file each, and a table of them all."""

from scheduler.policies.base import Policy
from scheduler.policies.gavel import Gavel, MaxMinFairness
from scheduler.policies.least_attained_service import LeastAttainedService
from scheduler.policies.optimus import Optimus
from scheduler.policies.pollux import Pollux
from scheduler.policies.priority import Priority
from scheduler.policies.sia import Sia
from scheduler.policies.weighted_fair_sharing import WeightedFairSharing

POLICIES: dict[str, type[Policy]] = {
    "tiresias": LeastAttainedService,
    "optimus": Optimus,
    "pollux": Pollux,
    "priority": Priority,
    "weighted_fair_sharing": WeightedFairSharing,
    "gavel": Gavel,
    "max_min_fairness": MaxMinFairness,
    "sia": Sia,
}
"""The policies by their names."""
