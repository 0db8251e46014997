"""The names of a job's policy and predictor, as a value that checks itself; `learning` makes the policies."""

from dataclasses import dataclass
from typing import Annotated

from batchsize_manager.policies import POLICIES, POLICIES_WITH_PREDICTOR, Tolerance
from idl.settings import Checked, Setting
from predictors import PREDICTORS


@dataclass(frozen=True)
class Balancing(Checked):
    """The way in which a job's batches are split.

    Raises:
        ValueError: A name is unknown, or the tolerance out of its range.
    """

    policy: Annotated[str, Setting(choices=POLICIES)]  # a name in `batchsize_manager.policies.POLICIES`
    # A name in `predictors.PREDICTORS`, for policies that split by predicted speeds.
    predictor: Annotated[str, Setting(choices=PREDICTORS)]
    # How much slower than the best a split may be before it is changed, at least 0, below 1.
    tolerance: Tolerance

    @property
    def uses_predictor(self) -> bool:
        """Return whether the policy splits by predicted speeds."""
        return self.policy in POLICIES_WITH_PREDICTOR
