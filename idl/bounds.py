"""The batch sizes that a worker can take."""

from dataclasses import dataclass


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

    minimum: int = 1
    maximum: int = 2**40
    granularity: int = 1

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ValueError(f"minimum batch size {self.minimum}: must be at least 1")
        if self.maximum < self.minimum:
            raise ValueError(
                f"maximum batch size {self.maximum}: must be at least the minimum, {self.minimum}"
            )
        if not 1 <= self.granularity <= self.maximum:
            raise ValueError(f"granularity {self.granularity}: must be from 1 to the maximum, {self.maximum}")
        if self.maximum // self.granularity * self.granularity < self.minimum:
            raise ValueError(
                f"granularity {self.granularity}: no multiple of it lies from the minimum, {self.minimum}, "
                f"to the maximum, {self.maximum}"
            )
