"""Policies that give the devices of a cluster to jobs: one file each, and a table of them all."""

from scheduler.policies.base import Policy
from scheduler.policies.least_attained_service import LeastAttainedService
from scheduler.policies.optimus import Optimus

POLICIES: dict[str, type[Policy]] = {"tiresias": LeastAttainedService, "optimus": Optimus}
"""The policies by their names."""
