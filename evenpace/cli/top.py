"""Screen of `evenpace top`: a thread polls the manager, the main one draws and reads the keyboard."""

import contextlib
import logging
import os
import re
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from batchsize_manager.client import ManagerClient
from evenpace.cli.overview_tables import (
    Shown,
    events,
    head,
    jobs_table,
    reasons_below,
    shown,
    sparkline,
    workers_table,
)
from evenpace.overview import phrases
from evenpace.overview.feed import Feed
from idl.errors import ConnectionLostError, EvenpaceError

_TICK = 0.2  # seconds between looks at the keyboard, the terminal's size and what is new
_CATCH_UP = 0.05  # seconds between looks at the manager while a long past is still to be read
_LEAVE = 1.0  # seconds for a poll to end with the screen, unless it is connecting to a machine that is gone
_EVENTS = 5  # last events that are shown
_WORKERS = 500  # workers, more than a terminal has lines
_KEY = re.compile(rb"\x1b[\[O][A-Z]|.", re.DOTALL)  # an arrow is several bytes
_KEYS = {
    b"q": "quit",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"k": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"j": "down",
    b"\r": "open",
    b"\n": "open",
    b"b": "back",
    b"\x1b": "back",
}


def watch(console: Console, client: ManagerClient, job: str | None, manager: str, interval: float) -> None:
    """Show the screen until q or Ctrl-C.

    Args:
        job: Name of the job to show; None for all.
        manager: Address of the manager, to be shown.
        interval: Seconds between polls of the manager.

    Raises:
        EvenpaceError: The manager could not be reached the first time.
    """
    watcher = _Watcher(client, job)
    watcher.look()
    logging.getLogger().setLevel(logging.CRITICAL)  # a line of a log would tear the screen
    chosen, drawn = "", None
    live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
    with contextlib.suppress(KeyboardInterrupt), watcher.running(interval), _keyboard() as keyboard, live:
        while True:
            seen = watcher.seen
            names = [one.summary.job for one in seen.jobs]
            chosen = chosen if chosen in names else next(iter(names), "")
            view = (seen, chosen, console.size, int(time.monotonic()))
            if view != drawn:
                live.update(_draw(seen, manager, chosen, *console.size), refresh=True)
                drawn = view
            for key in _keys(keyboard, _TICK):
                if key == "quit":
                    return
                if key == "open":
                    watcher.open(chosen)
                elif key == "back":
                    watcher.open(job)
                elif key in ("up", "down") and names:
                    place = names.index(chosen) + (1 if key == "down" else -1)
                    chosen = names[min(max(place, 0), len(names) - 1)]


@dataclass(frozen=True, eq=False)
class _Seen:
    """Result of the last poll."""

    jobs: tuple[Shown, ...]  # jobs in the manager's order
    opened: str | None  # name of the job to be shown with its workers; None for the list
    lost: str  # reason why the manager could not be reached; empty if it could
    since: float  # when it was last reached, in the monotonic clock's seconds


class _Watcher:
    """Poller of the manager in a thread of its own, since an answer may take long."""

    def __init__(self, client: ManagerClient, opened: str | None) -> None:
        self.seen = _Seen((), opened, "", time.monotonic())
        self._client = client
        self._feed = Feed(client, None if opened is None else [opened])
        self._opened = opened
        self._woken = threading.Event()
        self._ended = False

    def open(self, job: str | None) -> None:
        """Show a job from now on; None for the list."""
        self._opened = job
        self._woken.set()

    def look(self) -> None:
        """Poll the manager once (EvenpaceError: the manager cannot be reached)."""
        self._feed.poll()
        self._note("", time.monotonic())

    @contextlib.contextmanager
    def running(self, interval: float) -> Iterator[None]:
        """Poll the manager in a thread during a `with` block, at an interval in seconds.

        After it the thread makes no call any more: one that is under way fails.
        """
        polling = threading.Thread(target=self._run, args=(interval,), name="evenpace-top", daemon=True)
        polling.start()
        try:
            yield
        finally:
            self._ended = True
            self._client.abandon(ConnectionLostError("the screen is closed"))
            self._woken.set()
            polling.join(_LEAVE)

    def _run(self, interval: float) -> None:
        while not self._ended:
            self._woken.wait(_CATCH_UP if self._feed.behind else interval)
            self._woken.clear()
            try:
                self.look()
            except EvenpaceError as error:
                self._note(str(error), self.seen.since)

    def _note(self, lost: str, since: float) -> None:
        opened = self._opened
        jobs = tuple(shown(job, _WORKERS if name == opened else 0) for name, job in self._feed.jobs.items())
        self.seen = _Seen(jobs, opened, lost, since)


def _draw(seen: _Seen, manager: str, chosen: str, width: int, height: int) -> RenderableType:
    title = Text.assemble(("evenpace ", "bold"), manager, f"  {time.strftime('%H:%M:%S')}", no_wrap=True)
    if seen.lost:
        away = phrases.seconds(max(1.0, time.monotonic() - seen.since))
        title.append(f"  cannot be reached since {away}", style="bold red")
    opened = [one for one in seen.jobs if one.summary.job == seen.opened]
    if opened:
        keys = "b back  q quit"
        body = _one(opened[0], width, height - 3)
    else:
        keys = "up/down choose  Enter show  q quit"
        body = _all(seen, chosen, width, height - 3)
    return Group(title, Text(), *body, Text(keys, style="dim", no_wrap=True))


def _all(seen: _Seen, chosen: str, width: int, lines: int) -> list[RenderableType]:
    """Draw as many jobs as fit below a line of titles; the chosen one is among them."""
    if seen.opened is not None:
        return [Text(f"no job {seen.opened!r} yet", style="dim")]
    room, cut = _fit(len(seen.jobs), lines - 1)
    place = next((i for i, one in enumerate(seen.jobs) if one.summary.job == chosen), 0)
    first = min(max(0, place - room + 1), max(0, len(seen.jobs) - room))
    return [jobs_table(seen.jobs[first : first + room], width, chosen), *_more(len(seen.jobs) - room, cut)]


def _one(job: Shown, width: int, lines: int) -> list[RenderableType]:
    """Draw a job: its head, iterations' times, slowest workers that fit, why they are, and last events."""
    top = [*head(job, width), sparkline(job.durations, width), Text()]
    said = events(job, min(_EVENTS, max(0, lines - len(top) - 5)))
    bottom = [Text(), *said] if said else []
    count = sum(job.figures.verdicts.values())
    room, cut = _fit(count, lines - len(top) - len(bottom) - 1)
    hidden = count - len(job.figures.workers[:room])
    left = lines - len(top) - len(bottom) - 1 - min(room, count) - cut
    below = reasons_below(job, width)[: max(0, left - 1)]
    if below:
        below.insert(0, Text())
    return [*top, workers_table(job, width, room), *_more(hidden, cut), *below, *bottom]


def _fit(count: int, lines: int) -> tuple[int, bool]:
    """Return how many of `count` items fit into lines, and whether a line must count the others."""
    return (count, False) if count <= lines else (max(1, lines - 1), True)


def _more(count: int, cut: bool) -> list[Text]:
    return [Text(f"... {count:,} more", style="dim")] if cut else []


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Yield the keyboard's descriptor, set to give each key at once without echo; None for no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard, termios.TCSANOW)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


def _keys(keyboard: int | None, seconds: float) -> list[str]:
    """Return the actions of the keys pressed within some seconds."""
    if keyboard is None:
        time.sleep(seconds)
        return []
    if not select.select([keyboard], [], [], seconds)[0]:
        return []
    pressed = os.read(keyboard, 64)
    if not pressed:  # the terminal has gone
        return ["quit"]
    return [_KEYS[key] for key in _KEY.findall(pressed) if key in _KEYS]
