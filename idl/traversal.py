"""How far a worker has gone through its part of the data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traversal:
    """What a worker reports.

    Attributes:
        generation: Whose counts these are.
        samples: That it has now.
        drawn: Samples that it has used in this generation.
        iterations: In which it has used them.
        moved: Whether it has done with its moves.
    """

    generation: int
    samples: int
    drawn: int
    iterations: int
    moved: bool = False
