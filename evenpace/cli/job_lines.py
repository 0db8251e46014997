"""Lines of a job's log on the terminal, and below them one line of how far the job has come."""

import contextlib
import math
import os
import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evenpace.cli.prefixed import prefixed
from evenpace.overview.phrases import samples
from evenpace.ray.job_page import JobPage
from scheduler.ray.controller import News

_REPEAT_SECONDS = 30.0  # between lines of progress that say nothing else, where the output is no terminal
_CHANGE_SECONDS = 2.0  # between lines of progress that say something new


class JobLines:
    """Context manager that shows a job's news; on a terminal, the last line is its progress.

    Processes' lines go to the standard output, what is about the job to the standard error. Meanwhile Ray's
    own reports of lost nodes, fifty lines each, are kept from the standard output: the controller says it in
    one.

    Args:
        page: A page about the job, which goes by the same news.
    """

    def __init__(self, page: JobPage | None = None) -> None:
        self._page = page
        self._out = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = (
            Live(console=self._console, transient=True, auto_refresh=False) if sys.stderr.isatty() else None
        )
        self._said, self._said_at = "", -math.inf
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        nowhere = self._stack.enter_context(open(os.devnull, "w"))
        self._stack.enter_context(contextlib.redirect_stdout(nowhere))
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._stack.close()

    def show(self, news: News) -> None:
        """Print the new lines, and the progress where it has changed."""
        if self._page is not None and (begun := self._page.follow(news)):
            self.note(begun)
        for _, name, line in news.lines:
            to = self._console if name == "job" else self._out
            to.print(prefixed(name, line, "bold" if name == "job" else ""))
        text = progress(news)
        if self._live is not None:
            self._live.update(Text(text, "bold"), refresh=True)
        elif self._is_due(text, news):
            self._console.print(text)
            self._said, self._said_at = _kind(news), time.monotonic()

    def note(self, text: str) -> None:
        """Print a line about the job."""
        self._console.print(text)

    def _is_due(self, text: str, news: News) -> bool:
        if news.finish is not None:
            return False
        silent = time.monotonic() - self._said_at
        return silent > _REPEAT_SECONDS or (_kind(news) != self._said and silent > _CHANGE_SECONDS)


def progress(news: News) -> str:
    """Return in one line how far a job has come, who is waited for and why."""
    parts = []
    if news.progress is not None:
        one = news.progress
        parts.append(f"{one.state}, iteration {one.iteration:,}, batches of {samples(one.batch_size)}")
    if not _has_ended(news):
        parts.append(f"{news.running} {'worker' if news.running == 1 else 'workers'}")
    if news.failures:
        parts.append(f"{news.failures} {'failure' if news.failures == 1 else 'failures'}")
    waits = [f"{name} {why}" for name, why in news.waits.items()]
    if waits:
        more = f", and {len(waits) - 2} more" if len(waits) > 2 else ""
        parts.append(f"waiting: {'; '.join(waits[:2])}{more}")
    return "; ".join(parts)


def _kind(news: News) -> str:
    """Return what makes a line of progress worth saying at once."""
    state = news.progress.state if news.progress is not None else ""
    return f"{state} {0 if _has_ended(news) else news.running} {sorted(news.waits.items())}"


def _has_ended(news: News) -> bool:
    """Return whether the training is over: its workers end then, one after the other, which says nothing."""
    return news.progress is not None and news.progress.state == "ended"
