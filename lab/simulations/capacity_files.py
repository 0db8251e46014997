"""Files of nodes that come and go: events, `time_s,event,node`, or numbers of nodes, `time_s,nodes`."""

from collections.abc import Sequence
from pathlib import Path

from lab.csv_rows import read_rows
from lab.simulator.capacity import Capacity

_EVENTS = {"join": True, "loss": False}


def read_events(path: Path) -> list[tuple[float, str, bool]]:
    """Read the events of a file, in its order: times in seconds, each with a node and whether it joins."""
    events = []
    for row in read_rows(path, ("time_s", "event", "node")):
        event = row.text("event")
        if event not in _EVENTS:
            raise row.error("event", f"must be {' or '.join(_EVENTS)}")
        events.append((row.number("time_s"), row.text("node"), _EVENTS[event]))
    return events


def read_capacity(path: Path, nodes: Sequence[str]) -> Capacity:
    """Read the nodes that are there, over time; they repeat after the file's last time.

    Where the file names nodes, the first that it names is the cluster's first, and so on; of more than the
    cluster has, the others are not used.
    """
    with path.open(encoding="utf-8") as stream:
        by_number = "nodes" in stream.readline().strip().split(",")
    try:
        if by_number:
            rows = read_rows(path, ("time_s", "nodes"))
            return Capacity.of_counts([(row.number("time_s"), row.integer("nodes")) for row in rows], nodes)
        events = read_events(path)
        names = dict(zip(dict.fromkeys(node for _, node, _ in events), nodes, strict=False))
        capacity = Capacity.of_events(event for event in events if event[1] in names)
    except ValueError as error:
        raise error if str(path) in str(error) else ValueError(f"{path}: {error}") from error
    changes = ((time, frozenset(names[node] for node in there)) for time, there in capacity.changes)
    return Capacity(tuple(changes), capacity.period)
