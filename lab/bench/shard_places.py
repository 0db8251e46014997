"""Shards of a parameter server in network namespaces of their own, so that their links can be limited."""

import contextlib
from collections.abc import Iterator

from evenpace.local.cluster import service
from lab.network import WorkerNetwork
from rpc.processes import Process


@contextlib.contextmanager
def shards_in_places(shards: int, places: int) -> Iterator[tuple[WorkerNetwork, list[Process]]]:
    """Start shards in the first places of a network; yield it, and them."""
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(WorkerNetwork(places))
        started = []
        for place in range(shards):  # no other machine can reach them, as the network is this process's alone
            own = service("ps", "--insecure", host=network.address(place), prefix=network.prefix(place))
            started.append(stack.enter_context(own))
        yield network, started
