"""PyTorch: a loader for workers that each have a part of the data of their own."""

import atexit
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.data as torch_data
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from rpc.address import Address
from worker.data.slices import Slices
from worker.own_session import own_session
from worker.partitions.link import PartitionConfig, PartitionLink
from worker.partitions.samples import SampleForm
from worker.session import Session
from worker.torch.loader import MapStyleDataset


class PartitionedLoader:
    """As `worker.torch.loader.DataLoader`, for a data set of which each worker has a part, and no other.

    A worker takes from its part as many samples as the manager plans for it, and begins the part anew, in
    another order, where it ends. A DataPartitionManager sees to it that no part is gone through much more
    often than another: samples move from slower to faster workers while they train. A pass over the loader
    is as many batches as all workers' samples together make.

    Making one waits until all workers of the job have made theirs.

    Args:
        dataset: This worker's part, map-style. Its samples are arrays, tensors or numbers, or tuples, lists
            and dictionaries of these, all with the same types and numbers of dimensions.
        batch_size: Samples of a whole batch, over all workers.
        session: With the services; by default this process's.
        partitions: HOST:PORT of the DataPartitionManager.
        listen: HOST:PORT where the other workers reach this one; port 0 takes a free one.
        seed: Of the order of samples.
        drop_last: Whether a pass's last, smaller batch is left out.
        collate_fn: Makes a batch from a list of samples.
        room_mib: Memory for samples of other workers, in MiB; more are not taken.
        insecure: Whether to listen to other machines without TLS, on a network that is trusted.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
        EvenpaceError: The DataPartitionManager cannot be reached, or not all workers came in time.
    """

    def __init__(
        self,
        dataset: MapStyleDataset,
        batch_size: int = 1,
        *,
        partitions: str,
        session: Session | None = None,
        listen: str = "127.0.0.1:0",
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] = torch_data.default_collate,
        room_mib: int = 1024,
        insecure: bool = False,
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
            self.slices = Slices(
                self.partition.dataset_size, batch_size, session, seed=seed, drop_last=drop_last
            )
        except BaseException:
            self.partition.close()
            raise
        self.session = session
        self.dataset = dataset
        self.batch_size = batch_size
        self._collate = collate_fn
        if of_process:
            atexit.register(self.close)

    def __len__(self) -> int:
        """How many batches the current pass has; it changes if the batch size does."""
        return len(self.slices)

    def __iter__(self) -> Iterator[Any]:
        """This worker's parts of the next pass's batches, as `collate_fn` makes them.

        Raises:
            InvalidRequestError: The last pass was not finished, or an iteration was not.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        for part in self.slices:
            with self.session.tally.phase("load", part.assignment):
                batch = self._collate(self.partition.draw(len(part.indices), part.assignment.iteration))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, for a checkpoint; see `worker.data.slices.Slices.state_dict`.

        It does not say where samples are: a job that is resumed begins with each worker's own.
        """
        return self.slices.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, before the training begins; see `Slices.load_state_dict`."""
        self.slices.load_state_dict(state)

    def close(self) -> None:
        """Leave the DataPartitionManager; samples that other workers have handed over go back to them."""
        self.partition.close()


def _revive(example: Any, array: NDArray[Any]) -> Any:
    """An array as what it was in the example."""
    if isinstance(example, torch.Tensor):
        return torch.from_numpy(array)
    return array[()] if isinstance(example, np.generic) else array
