"""The names of a job's policy and predictor, as a value that checks itself; `learning` makes the policies."""

from dataclasses import dataclass

from batchsize_manager.policies import POLICIES, POLICIES_WITH_PREDICTOR
from predictors import PREDICTORS


@dataclass(frozen=True)
class Balancing:
    """The way in which a job's batches are split.

    Attributes:
        policy: A name in `batchsize_manager.policies.POLICIES`.
        predictor: A name in `predictors.PREDICTORS`, for policies that split by predicted speeds.
        tolerance: How much slower than the best a split may be before it is changed, at least 0, below 1.

    Raises:
        ValueError: A name is unknown, or the tolerance out of its range.
    """

    policy: str
    predictor: str
    tolerance: float

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"no policy {self.policy!r}; there are {', '.join(POLICIES)}")
        if self.predictor not in PREDICTORS:
            raise ValueError(f"no predictor {self.predictor!r}; there are {', '.join(PREDICTORS)}")
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance {self.tolerance}: must be at least 0 and below 1")

    @property
    def uses_predictor(self) -> bool:
        """Return whether the policy splits by predicted speeds."""
        return self.policy in POLICIES_WITH_PREDICTOR
