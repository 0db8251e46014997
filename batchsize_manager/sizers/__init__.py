"""Sizers: how large a job's whole batch is.

A sizer takes the gradient noise and the times of iterations with other sizes, and returns a size with the
reason. It has no state, clock or wire. To add one, write a module with a subclass of `Sizer` and name it in
`SIZERS`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Self

from batchsize_manager.sizers.base import Choice, Situation, Sizer
from batchsize_manager.sizers.goodput import Goodput
from batchsize_manager.sizers.schedule import Fixed, Schedule
from batchsize_manager.sizers.similarity import Similarity, SimilaritySteps
from idl.errors import InvalidRequestError
from idl.plan import JobSpec
from idl.settings import Checked, Setting

_ROOM = 16  # times the script's size, up to which a sizer goes where nothing else is said


@dataclass(frozen=True, slots=True)
class Sizes:
    """Samples of a whole batch: one size to begin with, or the bounds of what may be chosen.

    Raises:
        ValueError: A number is out of its range.
    """

    least: int  # the one size, or the fewest samples, at least 1
    most: int | None = None  # the most samples, at least `least`; None for one size

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"batch_size {self.least}: must be at least 1")
        if self.most is not None and self.most < self.least:
            raise ValueError(f"batch_size {self}: the most must be at least the least, {self.least}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the sizes that a text means: `256`, or `64:4096` (ValueError: it means none)."""
        try:
            return cls(*(int(number) for number in text.split(":", 1)))
        except ValueError as error:
            if "batch_size" in str(error):
                raise
            raise ValueError(f"batch_size {text!r}: must be a number, or two as in 64:4096") from None

    def __str__(self) -> str:
        """Return the text that `parse` takes."""
        return str(self.least) if self.most is None else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class Sizing(Checked):
    """The way in which the size of a job's batches is chosen (ValueError: a value is not allowed)."""

    # A name in `SIZERS`; None: schedule where the script has one, else fixed.
    sizer: Annotated[
        str | None,
        Setting(
            "How the whole batch's size is chosen while the job runs.  [default: schedule where the script "
            "has one, else fixed]",
            choices=("fixed", "schedule", "goodput", "similarity", "similarity_steps"),
        ),
    ] = None
    # The size to begin with, or bounds.
    batch_size: Annotated[
        Sizes | None,
        Setting(
            "Samples of a whole batch: to begin with, or the least and the most that a sizer may choose.  "
            f"[default: from the scripts' size to {_ROOM} times that]",
            metavar="SAMPLES|LEAST:MOST",
            read=Sizes.parse,
        ),
    ] = None
    promise: Annotated[
        float,
        Setting(
            "Share of goodput that a sizer must be sure to gain before it changes the size.", least=0, most=1
        ),
    ] = 0.05
    similarity: Annotated[
        float,
        Setting(
            "Threshold of the similarity sizers: a higher one asks for larger batches.", above=0, below=1
        ),
    ] = 0.1

    def named(self, spec: JobSpec) -> str:
        """Return the sizer's name in a job."""
        return self.sizer or ("schedule" if spec.milestones else "fixed")

    def make(self, spec: JobSpec) -> Sizer:
        """Make the sizer of a job (InvalidRequestError: it follows a schedule, but the script has none)."""
        name = self.named(spec)
        if name == "schedule" and not spec.milestones:
            raise InvalidRequestError(
                "sizer schedule: the script has none; give its loader sizes by epoch, as in "
                "batch_size={0: 64, 30: 256}"
            )
        return SIZERS[name](self, spec)

    def bounds(self, spec: JobSpec) -> tuple[int, int]:
        """Return the fewest and the most samples that a sizer of a job may choose."""
        sizes = self.batch_size or Sizes(spec.total_batch_size)
        least, most = sizes.least, sizes.most or _ROOM * sizes.least
        return min(least, spec.dataset_size), min(most, spec.dataset_size)

    def first(self, spec: JobSpec) -> int:
        """Return the samples of a job's first batch."""
        if self.batch_size is None:
            return spec.total_batch_size
        least, most = self.bounds(spec)
        if self.batch_size.most is None:
            return least
        return max(least, min(spec.total_batch_size, most))


MEASURING = frozenset({"goodput", "similarity", "similarity_steps"})
"""Names of the sizers that go by what is measured."""

SIZERS: dict[str, Callable[[Sizing, JobSpec], Sizer]] = {
    "fixed": lambda sizing, spec: Fixed(),
    "schedule": lambda sizing, spec: Schedule(spec.total_batch_size, spec.milestones),
    "goodput": lambda sizing, spec: Goodput(sizing.promise),
    "similarity": lambda sizing, spec: Similarity(sizing.similarity, sizing.promise),
    "similarity_steps": lambda sizing, spec: SimilaritySteps(sizing.similarity),
}


__all__ = ["MEASURING", "SIZERS", "Choice", "Situation", "Sizer", "Sizes", "Sizing"]
