"""The batch sizes that a worker can take, and how many micro-batches it can compute at once."""

from dataclasses import dataclass
from typing import Annotated

from idl.settings import Setting, check_settings

MOST_AT_ONCE = 1024
"""The most micro-batches that any worker may compute at once."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The batch sizes that a worker can take, and the micro-batches that it can compute at once.

    Attributes:
        at_once: Most micro-batches that it can compute at once, in a job with micro-batches, 1 to 1024. Only
            these have to fit into its memory, not its whole share of the batch.

    Raises:
        ValueError: A number is out of its range.
    """

    # Least samples; at least 1, so that the worker's speed is always measured.
    minimum: Annotated[int, Setting("Fewest samples that it takes.", name="min-batch-size", least=1)] = 1
    # Most samples; at least `minimum`.
    maximum: Annotated[
        int,
        Setting(
            "Most samples that it can take, such as fit into its memory.", name="max-batch-size", least=1
        ),
    ] = 2**40
    # Samples of which batch sizes are multiples, unless no such sizes sum to the whole batch.
    granularity: Annotated[int, Setting("Number of which batch sizes are multiples.", least=1)] = 1
    at_once: Annotated[
        int,
        Setting(
            "Most micro-batches that its GPU computes at once; the manager finds out how many pay.",
            least=1,
            most=MOST_AT_ONCE,
        ),
    ] = 1

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

    def in_units(self, size: int) -> "Bounds":
        """Return bounds in samples as bounds in units of `size` samples.

        A unit of several samples is a micro-batch, of which the bounds are multiples (`JobSpec.narrowed`): in
        units there is no granularity left.
        """
        if size == 1:
            return self
        return Bounds(self.minimum // size, self.maximum // size, at_once=self.at_once)
