"""Ids of traces and spans, which every process computes by itself and which are the same in all.

They are truncated SHA-256 hashes of the trace and of the span's path from its root, whose own path is empty:
so a worker's span has the manager's as its parent without a message between them.
"""

import hashlib
from typing import NamedTuple

Path = tuple[str, ...]

ROUND: Path = ()  # the manager's span, from an iteration's planning until it is complete


class TraceKey(NamedTuple):
    """The identity of a trace."""

    run: str  # the job's name, "/", and its run, as at the parameter server
    iteration: int  # number of the iteration
    attempt: int  # number of times that the job had been rewound


def worker_path(worker: str, start: int) -> Path:
    """Return the path of a worker's part of an iteration, which begins at position `start`."""
    return "worker", worker, str(start)


def trace_id(key: TraceKey) -> int:
    """Return the trace's id: 16 bytes, not 0."""
    return _number(key, ("trace",), 16)


def span_id(key: TraceKey, path: Path) -> int:
    """Return a span's id: 8 bytes, not 0."""
    return _number(key, ("span", *path), 8)


def _number(key: TraceKey, path: Path, size: int) -> int:
    parts = [text.encode() for text in (key.run, str(key.iteration), str(key.attempt), *path)]
    framed = b"".join(len(part).to_bytes(4) + part for part in parts)  # else ("a", "bc") would be ("ab", "c")
    return int.from_bytes(hashlib.sha256(framed).digest()[:size]) or 1
