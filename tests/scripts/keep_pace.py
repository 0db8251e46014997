"""A worker's script: runs another one, which gets no further than a file says that the test has seen.

The file has a number of iterations; while there is none, no gradient is sent. Workers may also be made to
take a time for each sample that is long beside that of computing it: which is slower is then no matter of
luck.
"""

import json
import os
import runpy
import sys
import time
from pathlib import Path

from lab.observer import Observer
from rpc.client import Client

AHEAD = 3  # iterations that a worker may be ahead of what has been seen


def tell(file, iterations):
    """Let workers go on: so many iterations have been seen."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(str(iterations))
    new.replace(file)


def told(file):
    """The iterations that have been seen; fewer than none before anybody has looked."""
    return int(file.read_text()) if file.exists() else -1


def hold_workers(monkeypatch, module, file, **sample_seconds):
    """Have the workers that an experiment's module starts held back by a file.

    Those named in `sample_seconds`, with `_` for `-`, take at least that time for each sample.
    """
    monkeypatch.setenv("SEEN_FILE", str(file))
    named = {name.replace("_", "-"): seconds for name, seconds in sample_seconds.items()}
    monkeypatch.setenv("SAMPLE_SECONDS", json.dumps(named))
    monkeypatch.setenv("HELD_SCRIPT", str(module._SCRIPT))
    monkeypatch.setattr(module, "_SCRIPT", Path(__file__))


def follow_observer(monkeypatch, module, file):
    """Let the file say what the module's observer has seen."""

    class Seeing(Observer):
        def poll(self, *arguments):
            known = super().poll(*arguments)
            tell(file, len(self.iterations))
            return known

    monkeypatch.setattr(module, "Observer", Seeing)


def hold_back(file, sample_seconds):
    """Wait with the first gradient, and with reports of iterations too far ahead of those that were seen.

    Waiting before a report is no part of the time that it tells of, but what the samples take is.
    """
    send = Client.send

    def held(client, called, request, **options):
        if called == "push":
            time.sleep(request.assignment.count * sample_seconds.get(request.identity.worker, 0.0))
        while (called == "push" and told(file) < 0) or (
            called == "report" and request.iteration > told(file) + AHEAD
        ):
            time.sleep(0.01)
        send(client, called, request, **options)

    Client.send = held


if __name__ == "__main__":
    hold_back(Path(os.environ["SEEN_FILE"]), json.loads(os.environ["SAMPLE_SECONDS"]))
    sys.argv = [os.environ["HELD_SCRIPT"], *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
