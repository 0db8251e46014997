"""How a job's batches are split, by names: a value that checks itself. What makes policies is `learning`."""

from dataclasses import dataclass

from batchsize_manager.policies import POLICIES, POLICIES_WITH_PREDICTOR
from predictors import PREDICTORS


@dataclass(frozen=True)
class Balancing:
    """How a job's batches are split.

    Attributes:
        policy: A name in `batchsize_manager.policies.POLICIES`.
        predictor: A name in `predictors.PREDICTORS`, for policies that go by one.
        tolerance: See `PolicyOptions`.

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
        """Whether the policy goes by the predictor."""
        return self.policy in POLICIES_WITH_PREDICTOR
