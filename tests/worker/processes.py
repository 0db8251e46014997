"""Workers that run a script, each in a process of its own, and a check of their common end."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np

from rpc.processes import end_process
from tests.scripts import freeze_and_run, train_least_squares

LEAST_SQUARES = Path(train_least_squares.__file__)


@contextlib.contextmanager
def processes(
    folder, manager, shards, names, freeze=None, script=LEAST_SQUARES, arguments=(), options=(), launcher=()
):
    """Start workers that run a script, by name. Some freeze at a point; see `freeze_and_run`.

    With a launcher, its processes are returned, which start the workers.
    """
    with contextlib.ExitStack() as stack:
        workers = {}
        for name in names:
            log = stack.enter_context((folder / f"{name}.log").open("ab"))
            command = [*launcher, sys.executable, "-m", "evenpace", "worker"]
            command += ["--manager", str(manager), "--name", name]
            command += [word for shard in shards for word in ("--ps", str(shard))]
            command += options
            if freeze and name in freeze:
                command += [freeze_and_run.__file__, freeze[name]]
            command += [str(script), *arguments, "--out", str(folder / f"{name}.npy")]
            popen = subprocess.Popen(command, stdout=log, stderr=log)
            workers[name] = popen
            stack.callback(end_process, popen)
        yield workers


def end_well(folder, workers, wait_until, names, expected):
    """Wait for workers, which must end with the parameters of one process."""
    for name in names:
        wait_until(lambda name=name: workers[name].poll() is not None, f"the end of {name}")
        assert workers[name].returncode == 0, (folder / f"{name}.log").read_text()[-3000:]
        assert np.abs(np.load(folder / f"{name}.npy") - expected).max() < 1e-9
