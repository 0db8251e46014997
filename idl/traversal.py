"""A worker's progress through its part of the data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traversal:
    """A worker's report of its progress to the DataPartitionManager."""

    generation: int  # the generation of members that the counts belong to
    samples: int  # samples that the worker has now
    drawn: int  # samples that it has used in this generation
    iterations: int  # iterations in which it has used them
    moved: bool = False  # whether it has completed the moves that it was asked for
