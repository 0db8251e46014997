"""What a run under faults is made of: a value that checks itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenpace.chaos.schedule import KINDS


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        minutes: For which faults come.
        seed: Of the faults.
        kinds: Those that may come, by their names in `KINDS`.
        workers: Of the job.
        shards: Of the parameter server.
        gap: Seconds between two moments at which faults come, on average.
        pause: Seconds that each iteration of a worker takes longer, as if it computed more.
        checkpoint_every: Versions between two checkpoints of a shard.

    Raises:
        ValueError: A value is not allowed.
    """

    minutes: float
    seed: int
    kinds: Sequence[str] = tuple(KINDS)
    workers: int = 5
    shards: int = 2
    gap: float = 5.0
    pause: float = 0.02
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes {self.minutes}: must be above 0")
        if unknown := sorted(set(self.kinds) - set(KINDS)):
            raise ValueError(f"faults {', '.join(unknown)}: there are {', '.join(KINDS)}")
        if not self.kinds:
            raise ValueError(f"faults: give at least one of {', '.join(KINDS)}")

    @property
    def command(self) -> str:
        """What to type to have the same faults again."""
        return (
            f"evenpace chaos --minutes {self.minutes:g} --seed {self.seed} --faults {','.join(self.kinds)} "
            f"--workers {self.workers} --shards {self.shards}"
        )
