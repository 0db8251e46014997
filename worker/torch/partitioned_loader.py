"""PyTorch: a loader for workers each of which has a part of the data set, and no other."""

import atexit
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from rpc.address import Address
from worker.data.micro_batches import MicroBatch
from worker.data.slices import Slice
from worker.data.source import Source
from worker.own_session import own_session
from worker.partitions.link import PartitionConfig, PartitionLink
from worker.partitions.samples import SampleForm
from worker.session import Session
from worker.torch.loader import Loader, MapStyleDataset
from worker.weights import Weigh


class PartitionedLoader(Loader):
    """A loader like `worker.torch.loader.DataLoader`, for a data set of which each worker has a part.

    A worker takes from its part as many samples as the manager plans for it, and begins the part again, in
    another order, where it ends. A DataPartitionManager keeps all parts in use about equally often: samples
    move from slower to faster workers while they train. A pass over the loader has as many batches as all
    workers' samples together make.

    The constructor waits until all workers of the job have made their loaders.

    Args:
        dataset: This worker's part, map-style. Its samples are arrays, tensors or numbers, or tuples, lists
            and dictionaries of these, all with the same types and numbers of dimensions.
        batch_size: Samples of a whole batch, over all workers; or these by the first epoch that has them,
            such as `{0: 64, 30: 256}`.
        session: The session with the services; by default this process's.
        partitions: HOST:PORT of the DataPartitionManager.
        listen: HOST:PORT at which the other workers reach this one; port 0 chooses a free one.
        seed: Seed of the order of samples.
        drop_last: Whether a pass's last, smaller batch is left out.
        collate_fn: Makes a batch from a list of samples.
        room_mib: Most memory for samples of other workers, in MiB.
        insecure: Whether to listen to other machines without TLS, on a trusted network.
        weight: As for `worker.torch.loader.DataLoader`.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
        EvenpaceError: The DataPartitionManager cannot be reached, or not all workers joined in time.
    """

    def __init__(
        self,
        dataset: MapStyleDataset,
        batch_size: int | Mapping[int, int] = 1,
        *,
        partitions: str,
        session: Session | None = None,
        listen: str = "127.0.0.1:0",
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        room_mib: int = 1024,
        insecure: bool = False,
        weight: Weigh | str | None = None,
    ) -> None:
        if not len(dataset):
            raise InvalidRequestError("dataset: this worker's part must have at least one sample")
        if seed < 0 or room_mib < 0:
            raise InvalidRequestError(f"seed {seed}, room_mib {room_mib}: must be at least 0")
        of_process = session is None
        session = session or own_session()
        config = PartitionConfig(
            manager=Address.parse(partitions),
            job=session.config.job,
            worker=session.config.worker,
            listen=Address.parse(listen),
            seed=seed,
            room=room_mib * 2**20,
            connect_timeout=session.config.connect_timeout,
            start_timeout=session.config.barrier_timeout,
            credentials=session.config.credentials,
            insecure=insecure,
        )
        self.partition = PartitionLink(
            config, len(dataset), dataset.__getitem__, SampleForm(dataset[0], _revive)
        )
        try:
            super().__init__(
                _Partition(
                    dataset,
                    self.partition.dataset_size,
                    self.partition.draw,
                    collate_fn or torch_data.default_collate,
                ),
                batch_size,
                session,
                seed=seed,
                drop_last=drop_last,
                weight=weight,
            )
        except BaseException:
            self.partition.close()
            raise
        self.dataset = dataset
        if of_process:
            atexit.register(self.close)

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint; see `worker.data.slices.Slices.state_dict`.

        It does not have the samples' places: a resumed job begins with each worker's own samples.
        """
        return super().state_dict()

    def close(self) -> None:
        """Leave the DataPartitionManager; samples that other workers have handed over return to them."""
        self.partition.close()


class _Partition(Source):
    """The samples of this worker and those of others that it has: the next ones for each slice."""

    def samples(self, part: Slice | MicroBatch) -> Any:
        assert isinstance(part, Slice)  # there are no micro-batches
        return self.load(len(part.indices), part.assignment.iteration)


def _revive(example: Any, array: NDArray[Any]) -> Any:
    """Convert an array to the type that it has in the example."""
    if isinstance(example, torch.Tensor):
        return torch.from_numpy(array)
    return array[()] if isinstance(example, np.generic) else array
