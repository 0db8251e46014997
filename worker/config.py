"""What a session is made from: where the services are, what this worker is, what it goes on with."""

import os
import socket
from dataclasses import dataclass, field

from idl import check
from idl.bounds import Bounds
from idl.plan import JobSpec
from rpc.address import Address
from rpc.credentials import Credentials


def default_worker_name() -> str:
    """A name that no other worker is likely to have; under torchrun and its like, by the rank."""
    rank = os.environ.get("RANK")
    return f"rank-{rank}" if rank else f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True)
class SessionConfig:
    """Where the services are, and what this worker is.

    Attributes:
        manager: The BatchSizeManager's address.
        shards: The parameter server's shards, in the same order for every worker; none where the workers
            reduce their gradients among themselves.
        job: The job's name.
        worker: This worker's name, unique in the job.
        bounds: What batch sizes it can take.
        connect_timeout: Seconds in which each service must be reached.
        barrier_timeout: Seconds for which the others may keep this worker waiting.
        silence: Seconds for which a service may say nothing before its connection counts as broken, and the
            call is made anew; one that waits for others says so every two seconds.
        credentials: This worker's certificate and token; None where the services ask for neither.
        device: The kind of device that this worker computes on, in words; None: the GPU's name, or the CPU's
            and how many cores of it there are.

    Raises:
        ValueError: A value is not allowed.
    """

    manager: Address
    shards: tuple[Address, ...] = ()
    job: str = "default"
    worker: str = field(default_factory=default_worker_name)
    bounds: Bounds = field(default_factory=Bounds)
    connect_timeout: float = 30.0
    barrier_timeout: float = 600.0
    silence: float = 10.0
    credentials: Credentials | None = None
    device: str | None = None

    def __post_init__(self) -> None:
        if self.device is not None:
            check.text("device", self.device)
        if "/" in self.job:
            raise ValueError(f"job {self.job!r}: must not contain '/'")


@dataclass(frozen=True)
class JobCheckpoint:
    """What a session needs to go on with a job that was saved, beside the parameters.

    Attributes:
        iteration: The first that has not been trained.
        learned: What the manager had learned by then.
        spec: What was trained on.
        position: Epoch and first position of that iteration's batch, which the iteration does not tell where
            batches have had other sizes; None: as `spec` has it.
        batch_size: Samples of a whole batch, which an operator may have changed; None: as `spec` has it.
    """

    iteration: int
    learned: bytes
    spec: JobSpec
    position: tuple[int, int] | None = None
    batch_size: int | None = None
