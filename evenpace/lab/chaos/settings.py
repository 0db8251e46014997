"""What a run under faults is made of: a value that checks itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenpace.lab.chaos.schedule import KINDS

_TAKE_WORKERS_OUT = {"freeze-until-out"}


@dataclass(frozen=True)
class Settings:
    """One run.

    Attributes:
        minutes: For which faults come.
        seed: Of the faults.
        kinds: Those that come, by their names in `KINDS`; None for all that can be brought about here.
        workers: Of each job.
        shards: Of the parameter server.
        link_mib: MiB per second that each connection of a worker carries either way.
        lookahead: Iterations that the manager plans ahead.
        jobs: How many train at once.
        deterministic: Whether the end must have the same bits as without a fault; then faults befall the
            manager and the links to shards only.
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
    link_mib: float = 3.0
    lookahead: int = 0
    jobs: int = 1
    deterministic: bool = False
    gap: float = 4.0
    pause: float = 0.02
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise ValueError(f"minutes {self.minutes}: must be above 0")
        if unknown := sorted(set(self.wanted) - set(KINDS)):
            raise ValueError(f"faults {', '.join(unknown)}: there are {', '.join(KINDS)}")
        if not self.wanted:
            raise ValueError(f"faults: give at least one of {', '.join(KINDS)}")
        if not self.link_mib > 0:
            raise ValueError(f"link_mib {self.link_mib}: must be above 0")
        if self.deterministic and (wrong := sorted(_TAKE_WORKERS_OUT & set(self.wanted))):
            raise ValueError(
                f"faults {', '.join(wrong)}: take workers out, after which other bits are to be expected; "
                f"leave them out with --deterministic"
            )

    @property
    def wanted(self) -> tuple[str, ...]:
        """The kinds that come if they can be brought about here."""
        if self.kinds is not None:
            return tuple(self.kinds)
        return tuple(kind for kind in KINDS if not (self.deterministic and kind in _TAKE_WORKERS_OUT))

    @property
    def command(self) -> str:
        """What to type to have the same faults again."""
        faults = "" if self.kinds is None else f"--faults {','.join(self.kinds)} "
        others = {"link-mib": self.link_mib, "lookahead": self.lookahead, "jobs": self.jobs}
        return (
            f"evenpace chaos --minutes {self.minutes:g} --seed {self.seed} {faults}"
            f"--workers {self.workers} --shards {self.shards}"
            + "".join(f" --{name} {value:g}" for name, value in others.items() if value != _DEFAULTS[name])
            + " --deterministic" * self.deterministic
        )


_DEFAULTS = {"link-mib": Settings.link_mib, "lookahead": Settings.lookahead, "jobs": Settings.jobs}
