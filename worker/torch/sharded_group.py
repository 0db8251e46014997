"""FSDP2 in groups that the manager forms, over a mesh of one dimension: each rank has what no other one has.

For another group the members of the present one gather all of the state; where one is gone, the others end.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import wait
from functools import partial
from socket import socket
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh

from idl.errors import InvalidRequestError
from worker.daemon_thread import in_daemon
from worker.session import Session
from worker.torch.formed_group import Wrapper
from worker.torch.lost_shards import GO_ON, end_once_stuck
from worker.torch.reaching import unreached
from worker.torch.shards import Shards
from worker.torch.weight_sums import WeightSum

_LOOK_SECONDS = 0.5  # between two looks for members that are gone
_MOST_SECONDS = 30.0  # to gather one tensor


class FullyShard(Wrapper):
    """A model in FSDP2, as `FormedGroup` has it sharded.

    Between two groups the model is whole: who has shards gathers all of the state before, and it is sharded
    again once all members have that state.

    Args:
        model: The model, to which `fully_shard` was applied.
    """

    def __init__(self, session: Session, model: nn.Module, shards: Shards) -> None:
        self._session = session
        self._device: torch.device = next(model.parameters()).device
        self._shards = shards

    def group(self, inner: Any, connections: list[socket], members: Mapping[str, str]) -> "ShardedGroup":
        """Return a group in which the model can be sharded."""
        self._session.weights.add_up = partial(WeightSum, device=self._device)
        return ShardedGroup(self._session, self._shards, connections, members)

    def begin(self) -> None:
        """Shard the model and the optimiser's state."""
        ranks, names = distributed.get_world_size(), self._shards.axes
        self._shards.scatter(init_device_mesh(self._device.type, (ranks,), mesh_dim_names=names))


class ShardedGroup:
    """The process group of a model in FSDP2, in which each member has a part that no other has.

    Args:
        connections: Duplicates of the group's connections.
        members: Addresses at which its members listen as long as they live, by name.
    """

    def __init__(
        self, session: Session, shards: Shards, connections: list[socket], members: Mapping[str, str]
    ) -> None:
        self._session = session
        self._shards = shards
        self._connections = connections
        self._members = members
        self._in_batch = False

    def begin(self) -> None:
        """Note that a batch begins."""
        self._in_batch = True

    def settle(self) -> str | None:
        """Note that the batch has ended; what could not be completed has raised an error in the script.

        Returns:
            None.
        """
        self._in_batch = False
        return None

    def commit(self) -> str | None:
        """Return None: the gradient is that of all ranks."""
        return None

    def cut(self) -> None:
        """Have this process end where the group is given up within a batch; may be called by any thread.

        A member has been taken out then. Between two batches the members gather the state for another group.
        """
        if self._in_batch:
            arguments = (self._session, "another group is to be formed", lambda: not self._in_batch)
            threading.Thread(target=end_once_stuck, args=arguments, name="evenpace-end", daemon=True).start()

    def leave(self) -> None:
        """Gather the state, unless that was done, with all other members.

        Raises:
            InvalidRequestError: A member is gone, and its shards with it.
        """
        if self._shards.is_whole:
            return
        gather(self._shards, self._members)

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


def gather(shards: Shards, members: Mapping[str, str]) -> None:
    """Gather a model's parameters and the optimiser's state with all other members.

    Args:
        members: The members' addresses by name.

    Raises:
        InvalidRequestError: A member is gone, and its shards with it.
    """
    gathered, since = shards.gathered, time.monotonic()
    gathering = in_daemon(shards.gather)
    while not wait([gathering], _LOOK_SECONDS).done:
        if gone := unreached(members):
            raise InvalidRequestError(f"{', '.join(gone)} cannot be reached: {GO_ON}")
        if gathered != shards.gathered:
            gathered, since = shards.gathered, time.monotonic()
        elif time.monotonic() > since + _MOST_SECONDS:
            raise InvalidRequestError(
                f"a worker has not handed on its state for {_MOST_SECONDS:g} s: {GO_ON}"
            )
    try:
        gathering.result()
    except RuntimeError as error:
        raise InvalidRequestError(f"the state cannot be gathered ({error}): {GO_ON}") from error
