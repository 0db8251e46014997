"""Script of a worker under faults, which trains until a file stops it, and keeps a journal.

Before an iteration's gradient is pushed, the journal gets the samples that it was made of; afterwards, the
version of the parameters that the worker has then. Lines are written to the file at once, so that a kill
loses none. It uses the session itself, as a framework's adapter does.
"""

import argparse
import json
import os
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evenpace.context import session as own_session
from idl.layout import Group, Layout, shard_bounds
from idl.plan import Assignment
from lab.chaos import reference_training as task
from lab.script_options import read_options
from worker import shard_clients
from worker.data.slices import Slices
from worker.exchanges.parameter_server import ParameterServer
from worker.session import Session

_TAKEN_BACK = 200  # iterations, in one of which a push is given up


class JournalWriter:
    """A file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *values: Any) -> None:
        """Add a line."""
        os.write(self._file, (json.dumps(values, separators=(",", ":")) + "\n").encode())


def worker_options() -> argparse.Namespace:
    """Return a script's options: the files `journal`, `stop` and `out`, and how to train, as `train` has it.

    The journal may be a folder for WORKER-TIME.jsonl, and `out` one for WORKER.npz.
    """
    options = read_options(pause=0.0, per_sample=0.0, micro_batch=None, schedule=False)
    for name in ("journal", "stop", "out"):
        setattr(options, name, Path(getattr(options, name)))
    return options


def main() -> None:
    """Train as the argument says."""
    options = worker_options()
    shard_clients.LEAST_EARLY_PULL = 0  # so that these few parameters are pulled early, too
    session = own_session()
    journal, out = options.journal, options.out
    if journal.is_dir():
        journal /= f"{session.config.worker}-{time.time_ns()}.jsonl"
    if out.is_dir():
        out /= f"{session.config.worker}.npz"
    more = {name: getattr(options, name) for name in ("pause", "micro_batch", "per_sample", "schedule")}
    train(session, journal, options.stop, out, **more)


def train(
    session: Session,
    journal_path: Path,
    stop: Path,
    out: Path,
    pause: float = 0.0,
    micro_batch: int | None = None,
    per_sample: float = 0.0,
    *,
    schedule: bool = False,
) -> None:
    """Train until the iteration that the file `stop` has, once there is such a file, or until released.

    Each iteration takes `pause` seconds longer, each sample `per_sample`; with a schedule, the batch's size
    changes with every epoch.
    """
    journal = JournalWriter(journal_path)
    inputs, labels = task.make_data()
    spec = task.SCHEDULED if schedule else task.SPEC
    slices = Slices(
        spec.dataset_size,
        task.SCHEDULE if schedule else spec.total_batch_size,
        session,
        shuffle=spec.shuffle,
        seed=spec.seed,
        micro_batch=micro_batch,
    )
    initial = task.first_parameters()
    server = ParameterServer.of(session.exchange)
    server.prepare(Layout("float64", "sgd", (Group(len(initial), task.OPTIONS),)), initial)
    session.start_training()
    halves = [(begin + end) // 2 for begin, end in shard_bounds(len(initial), server.shards)]

    def reached() -> int:
        """Write down the version of the parameters that this worker is to have now, and return it.

        Who was passed over may have later ones; what it computes with them does not count.
        """
        now = session.join()
        is_due = now.iteration % task.PRINT_EVERY == 0 and set(server.versions) == {now.iteration}
        prints = task.fingerprint(server.parameters).tolist() if is_due else None
        journal.write("reached", now.attempt, now.iteration, prints)
        return now.iteration

    reached()
    while True:
        for part in slices:
            done, indices = part.assignment, part.indices
            crc = zlib.crc32(indices.astype(np.int64).tobytes())
            told = (done.epoch, done.batch_start, done.total)
            journal.write("computed", done.attempt, done.iteration, done.start, done.count, crc, *told)
            if micro_batch is None:
                server.gradient.values[:] = task.mean_gradient(
                    server.parameters, inputs[indices], labels[indices]
                )
                _push_early(session, server, done, halves)
            for one in part.micro_batches:
                gradient = task.mean_gradient(server.parameters, inputs[one.indices], labels[one.indices])
                server.gradient.accumulate(done, gradient, one.count)
            time.sleep(pause + per_sample * done.count)
            session.finish_iteration()
            if session.released is not None:
                return
            version = reached()
            if stop.exists() and version >= int(stop.read_text()):
                np.savez(out, version=version, parameters=server.parameters)
                return


def _push_early(session: Session, server: ParameterServer, part: Assignment, ends: Sequence[int]) -> None:
    """Push the first half of each shard's part of the gradient; in some iterations, take it back."""
    if server.may_begin(part):
        server.begin_push(part, None, session.training.lr_scale)
        server.advance_push(ends)
        if part.iteration % _TAKEN_BACK == _TAKEN_BACK - 1:
            server.give_up_push("as a script that changes gradients after the backward pass")


if __name__ == "__main__":
    main()
