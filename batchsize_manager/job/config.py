"""The configuration of a manager's jobs: a value that checks itself."""

from dataclasses import dataclass, field
from math import inf
from typing import Annotated

from batchsize_manager.sizers import MEASURING, Sizing
from idl.settings import Setting, check_settings
from idl.synchronisation import Synchronisation


@dataclass(frozen=True)
class JobConfig:
    """The configuration of a manager's jobs. Times are in seconds.

    Attributes:
        report_timeout: The time for which others wait for a member's report before it is taken out; ten
            typical iterations, where these take longer.
        return_grace: The time in which a member whose connection broke is waited for where nobody else has
            the training's state.

    Raises:
        ValueError: A number is out of its range.
    """

    workers: Annotated[int, Setting("Number of workers with which a job starts.", least=1)] = 1
    lookahead: Annotated[
        int,
        Setting(
            "Iterations planned ahead of the reports, for GPUs: workers need not wait for their batch sizes.",
            least=0,
        ),
    ] = 0
    report_timeout: Annotated[
        float,
        Setting("Seconds that others wait for a worker before it is taken out.", above=0, below=inf),
    ] = 120.0
    # The time in which a member whose connection broke may come back.
    reconnect_grace: Annotated[float, Setting(least=0, below=inf)] = 1.0
    synchronisation: Synchronisation = field(default_factory=Synchronisation)
    release: Annotated[
        bool, Setting("Release workers without which the job is faster, instead of only logging it.")
    ] = False
    keep: Annotated[
        float,
        Setting(
            "Seconds that a job waits for other workers if the remaining ones cannot go on.",
            name="keep-job",
            least=0,
            below=inf,
        ),
    ] = 600.0
    heartbeat: Annotated[
        float, Setting("Seconds between a worker's heartbeats; 0 for none.", least=0, below=inf)
    ] = 2.0
    silence: Annotated[
        float,
        Setting(
            "Seconds without a heartbeat, after which others do a worker's part until it is back.",
            above=0,
            below=inf,
        ),
    ] = 10.0
    absence: Annotated[
        float, Setting("Seconds without a heartbeat, after which a worker is taken out.", least=0, below=inf)
    ] = 600.0
    return_grace: Annotated[float, Setting(least=0, below=inf)] = 30.0
    sizing: Sizing = field(default_factory=Sizing)
    end_on_nan: Annotated[
        bool,
        Setting(
            "End a job when a worker's gradient has a NaN or an infinity, instead of only logging it. Not "
            "for scripts with a GradScaler, which looks for them itself."
        ),
    ] = False
    scale_batch: Annotated[
        bool,
        Setting(
            "Let the batch follow the number of workers: the size that scripts give is that of --workers."
        ),
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.heartbeat >= self.silence:
            raise ValueError(f"heartbeat {self.heartbeat}: must be below silence, {self.silence} s")
        sync = self.synchronisation
        for name, given in (("lookahead", self.lookahead), ("release", self.release)):
            if given and sync.mode != "bsp":
                raise ValueError(f"{name} {given}: belongs to bsp, but the mode is {sync.mode}")
        self.check_sizing(self.sizing)
        if (sync.replicas_to_aggregate or 0) > self.workers:
            raise ValueError(
                f"replicas_to_aggregate {sync.replicas_to_aggregate}: "
                f"must be at most the number of workers, {self.workers}"
            )

    def check_sizing(self, sizing: Sizing) -> None:
        """Check that a way to choose the batch's size goes with the rest of the configuration.

        Raises:
            ValueError: It does not.
        """
        if sizing.sizer not in MEASURING:
            return
        if self.synchronisation.mode != "bsp":
            raise ValueError(
                f"sizer {sizing.sizer}: belongs to bsp, in which the gradient noise is measured, "
                f"but the mode is {self.synchronisation.mode}"
            )
        if self.scale_batch:
            raise ValueError(
                f"sizer {sizing.sizer}: with scale_batch, the batch follows the number of workers; "
                f"leave one of the two out"
            )

    @property
    def ahead(self) -> int:
        """The number of iterations planned beyond the first that is not complete; asp does not use it."""
        return self.synchronisation.staleness or self.lookahead
