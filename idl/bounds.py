"""The batch sizes that a worker can take."""

from dataclasses import dataclass
from typing import Annotated

from idl.settings import Setting, check_settings


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of batch sizes that a worker can take.

    Attributes:
        minimum: Least samples; at least 1, so that the worker's speed is always measured.
        maximum: Most samples; at least `minimum`.
        granularity: Samples of which batch sizes are multiples, except where the sum cannot be met otherwise.

    Raises:
        ValueError: A number is out of its range.
    """

    minimum: Annotated[int, Setting("", name="min-batch-size", least=1)] = 1
    maximum: Annotated[int, Setting("", name="max-batch-size", least=1)] = 2**40
    granularity: Annotated[int, Setting("Number of which batch sizes are multiples.", least=1)] = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if self.maximum < self.minimum:
            raise ValueError(
                f"maximum batch size {self.maximum}: must be at least the minimum, {self.minimum}"
            )
        if self.granularity > self.maximum:
            raise ValueError(f"granularity {self.granularity}: must be at most the maximum, {self.maximum}")
        if self.maximum // self.granularity * self.granularity < self.minimum:
            raise ValueError(
                f"granularity {self.granularity}: no multiple of it lies from the minimum, {self.minimum}, "
                f"to the maximum, {self.maximum}"
            )
