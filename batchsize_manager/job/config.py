"""How a manager runs its jobs: a value that checks itself."""

from dataclasses import dataclass, field

from idl.synchronisation import Synchronisation


@dataclass(frozen=True)
class JobConfig:
    """How a manager runs its jobs. Times are in seconds.

    Attributes:
        workers: The job starts when so many have joined.
        lookahead: Iterations that are planned ahead of the reports; 0 is the paper's blocking mode.
        report_timeout: For how long others wait for a member's report, or are ahead of a member that reports
            nothing, before the member is taken out; longer where iterations are longer than a tenth of it.
        reconnect_grace: In which a member whose connection broke may come back.
        synchronisation: How the members wait for each other.
        release: Whether members without which the job would be faster are taken out of it.
        keep: For how long a job whose last member has died is kept, so that others may go on with it.
        heartbeat: Between two heartbeats of a worker; 0 where none are wanted.
        silence: Without a report or a heartbeat, after which a member is suspended.
        absence: Of silence, after which a suspended member is taken out.
        return_grace: In which a member may come back after the manager was started again.
        scale_batch: Whether the batch size follows the number of members: `total_batch_size` is that of
            `workers` members then.

    Raises:
        ValueError: A number is out of its range.
    """

    workers: int = 1
    lookahead: int = 0
    report_timeout: float = 120.0
    reconnect_grace: float = 1.0
    synchronisation: Synchronisation = field(default_factory=Synchronisation)
    release: bool = False
    keep: float = 600.0
    heartbeat: float = 2.0
    silence: float = 10.0
    absence: float = 600.0
    return_grace: float = 30.0
    scale_batch: bool = False

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers {self.workers}: must be at least 1")
        if self.lookahead < 0:
            raise ValueError(f"lookahead {self.lookahead}: must be at least 0")
        for name in ("report_timeout", "silence"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} {getattr(self, name)}: must be above 0 s")
        for name in ("reconnect_grace", "keep", "heartbeat", "absence", "return_grace"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 0 s")
        if self.heartbeat >= self.silence:
            raise ValueError(f"heartbeat {self.heartbeat}: must be below silence, {self.silence} s")
        sync = self.synchronisation
        for name, given in (("lookahead", self.lookahead), ("release", self.release)):
            if given and sync.mode != "bsp":
                raise ValueError(f"{name} {given}: belongs to bsp, but the mode is {sync.mode}")
        if (sync.replicas_to_aggregate or 0) > self.workers:
            raise ValueError(
                f"replicas_to_aggregate {sync.replicas_to_aggregate}: "
                f"must be at most the number of workers, {self.workers}"
            )

    @property
    def ahead(self) -> int:
        """How many iterations are planned beyond the first that is not complete; not for asp."""
        return self.synchronisation.staleness or self.lookahead
