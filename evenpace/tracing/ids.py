"""Numbers of traces and spans, which every process makes by itself and which are the same in all.

They are SHA-256 hashes of what they stand for, cut off: so a worker's span has the manager's for its parent
although neither has told the other. A span is named by its path from the trace's root, whose own is empty.
"""

import hashlib
from typing import NamedTuple

Path = tuple[str, ...]

ROUND: Path = ()  # the manager's, from when an iteration is planned until it is complete


class TraceKey(NamedTuple):
    """What a trace is of.

    Attributes:
        run: The job's name, "/", and its run: the job's name at the parameter server.
        iteration: Which.
        attempt: How often the job had been rewound.
    """

    run: str
    iteration: int
    attempt: int


def worker_path(worker: str, start: int) -> Path:
    """A worker's part of an iteration, from the slice's first position on."""
    return "worker", worker, str(start)


def trace_id(key: TraceKey) -> int:
    """The trace's number: 16 bytes, not 0."""
    return _number(key, ("trace",), 16)


def span_id(key: TraceKey, path: Path) -> int:
    """A span's number: 8 bytes, not 0."""
    return _number(key, ("span", *path), 8)


def _number(key: TraceKey, path: Path, size: int) -> int:
    parts = [text.encode() for text in (key.run, str(key.iteration), str(key.attempt), *path)]
    framed = b"".join(len(part).to_bytes(4) + part for part in parts)  # else ("a", "bc") would be ("ab", "c")
    return int.from_bytes(hashlib.sha256(framed).digest()[:size]) or 1
