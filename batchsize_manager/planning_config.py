"""What `evenpace plan` splits: a value that checks itself, and imports little."""

import math
from dataclasses import dataclass
from typing import Annotated

from idl.bounds import MOST_AT_ONCE
from idl.cuts import Cuts
from idl.settings import Setting, check_settings


@dataclass(frozen=True)
class Task:
    """What is to be split.

    Attributes:
        at_once: Micro-batches that run at once take the time of one batch of as many samples, whose limit is
            the profile's. Of no effect where profiles are of jobs in micro-batches: their times are those of
            all micro-batches together.

    Raises:
        ValueError: A value is out of its range, or belongs to jobs in micro-batches.
    """

    total: Annotated[int, Setting("Samples of the whole batch.", least=1)]
    # Samples of a micro-batch; None for a job without.
    micro_batch: Annotated[int | None, Setting("Samples of a micro-batch.", least=1)] = None
    at_once: Annotated[
        int,
        Setting(
            "Micro-batches that a device computes at once, at most, as far as they fit.",
            least=1,
            most=MOST_AT_ONCE,
        ),
    ] = 1
    communication: Annotated[
        float,
        Setting("Seconds that each device after the first adds to an iteration.", least=0, below=math.inf),
    ] = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        size = self.micro_batch
        if size is not None and size > self.total:
            raise ValueError(f"micro_batch {size}: must be at most the total, {self.total}")
        if self.at_once > 1 and size is None:
            raise ValueError(f"at_once {self.at_once}: must be 1 without micro-batches")

    @property
    def unit(self) -> int:
        """Return the samples of the units that the batch is split into: a micro-batch; without, a sample."""
        return self.micro_batch or 1

    @property
    def parts(self) -> int:
        """Return the number of these units in a batch."""
        return len(Cuts(self.total, self.unit))
