"""Settings of a session: the services' addresses, this worker's properties, a checkpoint to resume from."""

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from idl import check
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, Resume
from idl.settings import Setting, check_settings
from rpc.credentials import Credentials
from rpc.places import Where


def default_worker_name() -> str:
    """Return a name that no other worker is likely to have; by the rank, where a launcher gives ranks."""
    rank = os.environ.get("RANK")
    if rank and os.environ.get("WORLD_SIZE") != "1":
        return f"rank-{rank}"
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True)
class SessionConfig:
    """Addresses of the services, and properties of this worker.

    Attributes:
        silence: Seconds for which a service may say nothing before its connection counts as broken, and the
            call is repeated; one that waits for others says so every two seconds.

    Raises:
        ValueError: A value is not allowed.
    """

    manager: Annotated[Where, Setting("The BatchSizeManager.")]
    # In the same order for every worker.
    shards: Annotated[
        tuple[Where, ...],
        Setting(
            "A shard of the parameter server; may be repeated. Left out: the script reduces gradients "
            "itself.",
            name="ps",
        ),
    ] = ()
    job: Annotated[str, Setting("The job's name.")] = "default"
    worker: Annotated[
        str,
        Setting("This worker's name, unique in the job.  [default: rank-RANK or HOST-PID]", name="name"),
    ] = field(default_factory=default_worker_name)
    bounds: Bounds = field(default_factory=Bounds)  # what batch sizes it can take
    connect_timeout: float = 30.0  # seconds in which each service must be reached
    barrier_timeout: float = 600.0  # seconds for which the others may keep this worker waiting
    silence: float = 10.0
    # This worker's certificate and token; None where the services ask for neither.
    credentials: Credentials | None = None
    push_dtype: Annotated[
        str | None,
        Setting(
            "Round gradients to it before they are pushed to the parameter server, which adds them up as "
            "exactly as others: half as many bytes.",
            choices=("bfloat16",),
        ),
    ] = None
    device: Annotated[
        str | None,
        Setting(
            "Of which kind it is, in words; whoever joins starts as others of its kind do.  "
            "[default: the GPU's name, or the CPU's and its cores]"
        ),
    ] = None

    host: Annotated[
        str | None,
        Setting(
            "This machine's address as other workers reach it, where the manager forms their group.  "
            "[default: that from which it reaches the manager]"
        ),
    ] = None

    keep: Annotated[
        Path | None,
        Setting(
            "Folder for the workers' state where the manager forms their group: it is written there when "
            "the job is suspended.  [default: they keep none]",
            folder=True,
        ),
    ] = None

    def __post_init__(self) -> None:
        for name in ("job", "worker", "device", "host"):
            if (value := getattr(self, name)) is not None:
                check.text(name, value)
        check_settings(self)
        if self.push_dtype and not self.shards:
            raise InvalidRequestError(
                f"push_dtype {self.push_dtype}: without a parameter server nothing is pushed"
            )
        if "/" in self.job:
            raise ValueError(f"job {self.job!r}: must not contain '/'")


@dataclass(frozen=True)
class JobCheckpoint:
    """A saved job's position and learned state, from which a session resumes it, beside the parameters.

    Attributes:
        position: Epoch and first position of that iteration's batch; None if all batches have had the size of
            `spec`, so that they follow from the iteration.
    """

    iteration: int  # the first iteration that has not been trained
    learned: bytes  # the learned state of the manager's policy and predictor, serialised
    spec: JobSpec  # the data that the job trains on, and its order
    position: tuple[int, int] | None = None
    # Samples of a whole batch, which an operator may have changed; None for that of `spec`.
    batch_size: int | None = None
    progress: float | None = None  # `Scaling.progress` of that iteration; None for the iteration

    @property
    def point(self) -> Resume:
        """The point from which the job continues."""
        return Resume(self.iteration, self.position, self.batch_size, self.progress)
