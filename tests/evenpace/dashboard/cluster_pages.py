"""The live page about a shared cluster, as a process whose scheduler a test plays."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rpc.processes import Process
from tests import ROOT
from tests.evenpace.dashboard.live_pages import Page, page_address

BEGAN = 1_700_000_000.0  # 22:13:20 UTC


class PlayedScheduler:
    """The scheduler of a node with four devices, two minutes after its record began.

    Args:
        folder: Where the page finds it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs: dict[str, dict[str, Any]] = {}
        self._lines: list[dict[str, Any]] = [{"time": BEGAN, "nodes": {"n" * 20: ["10.0.0.1", 4]}}]

    def times_asked(self, what: str = "status") -> int:
        """Return how often it was asked."""
        file = self._folder / "asked"
        return file.read_text().split().count(what) if file.exists() else 0

    def set(self, name: str, state: str, devices: int, why: str, **further: Any) -> None:
        """Let a job be in a state, from a second after the last change on."""
        at = BEGAN + len(self._lines)
        job = self._jobs.get(name, {"submitted": at})
        held = {"owner": "", "state": state, "held": False, "since": at, "why": why, "place": None}
        sizes = {"weight": 1.0, "most": 4, "target": devices, "attempt": 1}
        workers = {f"w{number}": ["n" * 20, "running"] for number in range(devices)}
        times = {"started": None, "ended": None, "how": None, "reason": ""}
        self._jobs[name] = {"job": name, **job, **held, **sizes, "workers": workers, **times, **further}
        line = {"time": at, "job": name, "submitted": self._jobs[name]["submitted"], "state": state}
        line |= {"held": False, "devices": {"n" * 20: devices} if devices else {}, "attempt": 1, "why": why}
        self._lines.append(line | {"how": self._jobs[name]["how"]})

    def write(self, **changes: Any) -> dict[str, Any]:
        """Have the page find what was set, with these values of the status changed; return the status."""
        used = sum(len(job["workers"]) for job in self._jobs.values())
        node = {"node": "n" * 20, "host": "10.0.0.1", "kind": "CPU", "devices": 4, "used": used}
        status = {
            "policy": "priority",
            "device": "CPU",
            "folder": "/_cluster",
            "closing": False,
            "trouble": "",
        }
        status |= {"now": BEGAN + 120, "begun": BEGAN}
        status |= {"utilisation": {"now": used / 4, "all": 0.5}, "nodes": [{**node, "leaving": False}]}
        status |= {"jobs": [*self._jobs.values()], "log": ["the first line", "the last line"], **changes}
        self._put("history.jsonl", "".join(json.dumps(line) + "\n" for line in self._lines))
        self._put("status.json", json.dumps(status))
        return status

    def go(self) -> None:
        """Be away until the next `write`."""
        (self._folder / "status.json").unlink()

    def _put(self, name: str, text: str) -> None:
        (self._folder / "part").write_text(text)
        os.replace(self._folder / "part", self._folder / name)


@contextlib.contextmanager
def played_cluster(folder: Path, viewers: int = 10) -> Iterator[tuple[Page, PlayedScheduler]]:
    """The page of a scheduler that has one job, which runs on all devices, and one that waits."""
    scheduler = PlayedScheduler(folder)
    scheduler.set("first", "running", 4, "decided by priority")
    scheduler.set("<b>second</b>", "waiting", 0, "submitted", place=1)
    scheduler.write()
    command = [sys.executable, "-m", "tests.scripts.serve_cluster_page", str(folder), str(viewers)]
    environment = {"PYTHONPATH": str(ROOT)}
    with Process("page", command, folder / "page.log", environment=environment, listens=True) as process:
        page = Page(page_address(process), process.popen, None, process.log)
        assert page.get("/api/status")["now"] == BEGAN + 120
        yield page, scheduler
