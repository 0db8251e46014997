"""Settings of a session: the services' addresses, this worker's properties, a checkpoint to resume from."""

import os
import socket
from dataclasses import dataclass, field

from idl import check
from idl.bounds import Bounds
from idl.plan import JobSpec
from rpc.address import Address
from rpc.credentials import Credentials


def default_worker_name() -> str:
    """Return a name that no other worker is likely to have; under torchrun and similar tools, by the rank."""
    rank = os.environ.get("RANK")
    return f"rank-{rank}" if rank else f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True)
class SessionConfig:
    """Addresses of the services, and properties of this worker.

    Attributes:
        manager: The BatchSizeManager's address.
        shards: The addresses of the parameter server's shards, in the same order for every worker; empty
            where the workers all-reduce their gradients.
        job: The job's name.
        worker: This worker's name, unique in the job.
        bounds: The batch sizes that it can take.
        connect_timeout: Seconds in which each service must be reached.
        barrier_timeout: Seconds for which the other workers may keep this one waiting.
        silence: Seconds for which a service may send nothing before its connection counts as broken, and the
            call is repeated; a service answers every two seconds while a call waits for other workers.
        credentials: This worker's certificate and token; None where the services require neither.
        device: The kind of device that this worker computes on, in words; None for the GPU's name, or the
            CPU's name and number of cores.

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
    """A saved job's position and learned state, from which a session resumes it, beside the parameters.

    Attributes:
        iteration: The first iteration that has not been trained.
        learned: The learned state of the manager's policy and predictor, serialised.
        spec: The data that the job trains on, and its order.
        position: Epoch and first position of that iteration's batch; None if all batches have had the size of
            `spec`, so that they follow from the iteration.
        batch_size: Samples of a whole batch, which an operator may have changed; None for that of `spec`.
    """

    iteration: int
    learned: bytes
    spec: JobSpec
    position: tuple[int, int] | None = None
    batch_size: int | None = None
