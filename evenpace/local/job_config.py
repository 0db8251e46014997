"""A training job on this machine, as it is asked for: a value that checks itself, and imports little."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from evenpace.local.fields import parse_shares
from idl.settings import Setting, check_settings
from rpc.address import Address


@dataclass(frozen=True)
class LocalJob:
    """A training job whose processes all run on this machine.

    Attributes:
        script: The training script.
        arguments: The script's arguments.
        shards: Shards of the parameter server; 0 where the workers reduce gradients among themselves.
        manager_options, shard_options, worker_options: More options of `evenpace manager`, `ps` and `worker`.

    Raises:
        ValueError: A value is not allowed.
    """

    script: Path = Path("train.py")
    arguments: tuple[str, ...] = ()
    workers: Annotated[
        int | None, Setting("Worker processes.  [default: one for each of --cpu-shares, or 1]", least=1)
    ] = None
    cpu_shares: Annotated[
        tuple[float, ...] | None,
        Setting(
            "Limit each worker to so many cores, to try out unequal workers.",
            metavar="CORES,...",
            read=parse_shares,
        ),
    ] = None
    restarts: Annotated[
        int, Setting("Start each worker that ends with an error again, up to so many times.", least=0)
    ] = 0
    shards: int = 1
    http: Annotated[
        Address | None, Setting("Serve a live page about the job there, for as long as it runs.")
    ] = None
    manager_options: tuple[str, ...] = ()
    shard_options: tuple[str, ...] = ()
    worker_options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        if self.workers is not None and self.cpu_shares is not None and len(self.cpu_shares) != self.workers:
            raise ValueError(
                f"cpu_shares {','.join(f'{share:g}' for share in self.cpu_shares)}: must be as many as "
                f"workers, {self.workers}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the workers' names."""
        count = self.workers or len(self.cpu_shares or (1.0,))
        return tuple(f"worker-{number}" for number in range(count))
