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
        kinds: Those that come, by their names in `KINDS`; None for all that can be brought about here.
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
    kinds: Sequence[str] | None = None
    workers: int = 5
    shards: int = 2
    gap: float = 5.0
    pause: float = 0.02
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes {self.minutes}: must be above 0")
        if unknown := sorted(set(self.wanted) - set(KINDS)):
            raise ValueError(f"faults {', '.join(unknown)}: there are {', '.join(KINDS)}")
        if not self.wanted:
            raise ValueError(f"faults: give at least one of {', '.join(KINDS)}")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The kinds that come if they can be brought about here."""
        return tuple(KINDS) if self.kinds is None else tuple(self.kinds)

    @property
    def command(self) -> str:
        """What to type to have the same faults again."""
        faults = "" if self.kinds is None else f"--faults {','.join(self.kinds)} "
        return (
            f"evenpace chaos --minutes {self.minutes:g} --seed {self.seed} {faults}"
            f"--workers {self.workers} --shards {self.shards}"
        )
