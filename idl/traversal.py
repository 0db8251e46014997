"""A worker's progress through its part of the data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traversal:
    """A worker's report of its progress to the DataPartitionManager.

    Attributes:
        generation: The generation of members that the counts belong to.
        samples: Samples that the worker has now.
        drawn: Samples that it has used in this generation.
        iterations: Iterations in which it has used them.
        moved: Whether it has completed the moves that it was asked for.
    """

    generation: int
    samples: int
    drawn: int
    iterations: int
    moved: bool = False
