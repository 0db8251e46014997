"""Metrics of all services: connections, calls and bytes, from the server's own counts."""

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from evenpace.metrics.catalogue import Families
from idl.version import __version__
from rpc.server import Server

Fill = Callable[[Families], None]


class PartCollector(Collector):
    """A collector that reads all metrics of one part at each scrape.

    Args:
        part: One of `catalogue.PARTS`.
        fills: Functions that set values of the families.
    """

    def __init__(self, part: str, *fills: Fill) -> None:
        self._part = part
        self._fills = fills

    def describe(self) -> Iterator[Metric]:
        """Return the families without values."""
        return iter(Families(self._part))

    def collect(self) -> Iterator[Metric]:
        """Return the families with their present values."""
        families = Families(self._part)
        families.set("build_info", 1, self._part, __version__)
        for fill in self._fills:
            fill(families)
        return iter(families)


def service_collector(part: str, server: Server, fill: Fill) -> PartCollector:
    """Return a collector of a service's metrics and those of its server."""
    return PartCollector(part, partial(_fill, server), fill)


def _fill(server: Server, families: Families) -> None:
    tally = server.tally
    families.set("connections", server.connections)
    families.set("connections_accepted", tally.accepted)
    families.set("connections_refused", tally.refused)
    families.set("connections_cut_off", tally.cut_off)
    families.set("received_bytes", tally.received)
    families.set("sent_bytes", tally.sent)
    families.set("loop_late_seconds", tally.loop_lag)
    for method, calls in tally.methods.items():
        for outcome, count in list(calls.outcomes.items()):
            families.set("calls", count, method, outcome)
        families.fill("call_seconds", calls.seconds, method)
