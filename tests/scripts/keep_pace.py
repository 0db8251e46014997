"""A worker's script: runs another one, which gets no further than a file says that the test has seen.

The file has a number of iterations; while there is none, no gradient is sent.
"""

import os
import runpy
import sys
import time
from pathlib import Path

from evenpace.observer import Observer
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


def hold_workers(monkeypatch, module, file):
    """Have the workers that an experiment's module starts held back by a file."""
    monkeypatch.setenv("SEEN_FILE", str(file))
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


def hold_back(file):
    """Wait with the first gradient, and with reports of iterations too far ahead of those that were seen.

    Waiting before a report is no part of the time that it tells of.
    """
    send = Client.send

    def held(client, called, request, **options):
        while (called == "push" and told(file) < 0) or (
            called == "report" and request.iteration > told(file) + AHEAD
        ):
            time.sleep(0.01)
        send(client, called, request, **options)

    Client.send = held


if __name__ == "__main__":
    hold_back(Path(os.environ["SEEN_FILE"]))
    sys.argv = [os.environ["HELD_SCRIPT"], *sys.argv[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
