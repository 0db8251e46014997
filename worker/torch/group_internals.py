"""What is private of PyTorch's process groups, and used here: another version of PyTorch may have changed it.

What is private of FSDP2 is in `shards`.
"""

import datetime
from typing import Any

import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import AllgatherOptions, DebugLevel, PrefixStore, TCPStore, get_debug_level
from torch.distributed import distributed_c10d

__all__ = [
    "AllgatherOptions",
    "DebugLevel",
    "PrefixStore",
    "TCPStore",
    "backend_of",
    "get_debug_level",
    "number_from_zero",
    "put_in_place",
    "set_timeouts",
    "work_of",
]


def work_of(future: torch.futures.Future[Any]) -> Any:
    """Return the operation that ends with a future."""
    return c10d._create_work_from_future(future)  # type: ignore[attr-defined]


def backend_of(group: Any, device: torch.device) -> Any:
    """Return the backend by which a group reduces a device's tensors."""
    return group._get_backend(device)


def number_from_zero() -> None:
    """Number groups from 0 on: their names have the number, by which members of a group have to agree."""
    distributed_c10d._world.group_count = 0


def set_timeouts(timeout: datetime.timedelta, but: type) -> None:
    """Set the time-out of operations in all groups, but for those of a class."""
    for group in list(distributed_c10d._world.pg_map):
        if not isinstance(group, but):
            distributed_c10d._set_pg_timeout(timeout, group)


def put_in_place(group: distributed.ProcessGroup, inner: distributed.ProcessGroup) -> None:
    """Have PyTorch find a group under the name of another one from now on."""
    world = distributed_c10d._world
    name = world.pg_names[inner]
    known: tuple[dict[Any, Any], ...] = (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
    )
    for table in known:
        table[group] = table[inner]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, group)
