"""Tables of jobs and workers for a terminal: values in, printable objects out. Nothing is fetched here."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evenpace.overview import phrases
from evenpace.overview.columns import SHOWN
from evenpace.overview.events import condensed
from evenpace.overview.feed import FollowedJob
from evenpace.overview.figures import JobFigures
from idl.records import Shown as ShownColumn

_STATES = {
    "running": "green",
    "ended well": "green",
    "failed": "bold red",
    "recovering": "yellow",
    "paused": "yellow",
}
_VERDICTS = {"chronic": "red", "passing": "yellow", "leader": "green", "even": "dim"}
_BARS = "▁▂▃▄▅▆▇█"
_EVENTS = 10  # last events that `details` shows
_WIDE = 130  # columns of a terminal from which on the table of workers is complete
_LONGEST_NAME = 24  # characters
_UNCUT = 0.97  # share of the bars that have their true height
_BARS_KEPT = 400  # bars, more than a terminal has columns
_UNKNOWN = "-"
_FORMS = {"percent": "{:.0%}", "number": "{:,.3g}"}  # of measured values, by `Shown.form`
_GAP = 2  # characters between columns, as rich has it
_JOB_COLUMNS = (
    *("job", "state", "iteration", "epoch", "members", "policy"),
    *("samples/s", "goodput", "speedup", "saved", "stragglers"),
)
# First to last, if need be.
_LEFT_OUT = ("goodput", "epoch", "policy", "members", "samples/s", "saved", "stragglers")


@dataclass(frozen=True)
class Shown:
    """Job at one moment, which the functions below draw.

    Attributes:
        summary: `JobSummary` of the wire.
        figures: Figures of the job, with the workers to be shown.
        behind: Number of iterations that the figures lack.
        events: Last `Event`s of the wire, oldest first.
        durations: Durations of the last iterations, in seconds.
        ranks: The workers' ranks in the group that the manager has formed, by name.
        changes: Last `GroupChange`s of the wire, oldest first.
    """

    summary: Any
    figures: JobFigures
    behind: int
    events: list[Any]
    durations: list[float]
    ranks: Mapping[str, int]
    changes: Sequence[Any]


def shown(job: FollowedJob, limit: int | None = None) -> Shown:
    """Return a job as it is now, with its `limit` slowest workers; None for all."""
    last = job.view.timeline(points=_BARS_KEPT, first=job.view.last - _BARS_KEPT + 1).durations
    figures = job.view.figures(job.states, limit)
    return Shown(job.summary, figures, job.behind, list(job.events), last, job.ranks, list(job.changes))


def jobs_table(jobs: Iterable[Shown], width: int, chosen: str | None = None) -> Table:
    """Make a table of all jobs, a line for each, with as many columns as fit into `width` characters."""
    lines, styles = [], []
    for job in jobs:
        summary, figures = job.summary, job.figures
        stragglers = figures.verdicts["chronic"] + figures.verdicts["passing"]
        saved = phrases.seconds(figures.saved_seconds) if figures.iterations else _UNKNOWN
        lines.append(
            {
                "job": Text(plain(summary.job), style="bold"),
                "state": state(phrases.job_state(summary.state, summary.reason)),
                "iteration": Text(f"{summary.iteration:,}"),
                "epoch": Text(_number(figures.epoch, "{:,}")),
                "members": Text(f"{summary.members} of {summary.workers}"),
                "policy": Text(_policy(summary)),
                "samples/s": Text(_number(figures.throughput, "{:,.0f}")),
                "goodput": Text(_number(figures.goodput, "{:,.0f}")),
                "speedup": Text(_number(figures.speedup, "{:.2f}×")),
                "saved": Text(saved),
                "stragglers": Text(str(stragglers) if figures.iterations else _UNKNOWN),
            }
        )
        styles.append("reverse" if summary.job == chosen else None)
    table = _table()
    for title in _that_fit(lines, width):
        right = title not in ("job", "state", "policy")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for line, style in zip(lines, styles, strict=True):
        table.add_row(*(line[str(column.header)] for column in table.columns), style=style)
    if not lines:
        table.add_row(Text("no jobs", style="dim"))
    return table


def details(job: Shown, width: int) -> RenderableType:
    """Draw one job with its workers and its last events."""
    parts: list[RenderableType] = [*head(job), Text(), workers_table(job, width, wrap=True)]
    if job.events:
        parts += [Text(), *events(job, _EVENTS)]
    return Group(*parts)


def head(job: Shown) -> list[Text]:
    """Draw a job's state, sums, gradient noise, changes of its group, and batch size, in a line each."""
    summary, figures, micro_batch = job.summary, job.figures, job.summary.spec.micro_batch
    ending = phrases.job_state(summary.state, summary.reason)
    first = Text.assemble((plain(summary.job), "bold"), "  ", state(ending))
    if summary.reason and ending == summary.state:
        first.append(f" ({plain(summary.reason)})")
    first.append(f"  {figures.headline}")
    if job.behind:
        first.append(f"  (without {job.behind:,} iterations, which are still to be read)", style="yellow")
    pieces = [
        f"iteration {summary.iteration:,}" + ("" if figures.epoch is None else f", epoch {figures.epoch:,}"),
        phrases.members(summary.members, summary.workers, over=summary.state in ("ended", "failed")),
        f"batches of {summary.batch_size:,}"
        + ("" if micro_batch is None else f" in micro-batches of {micro_batch:,}"),
        _policy(summary),
        phrases.exchange(summary.exchange, summary.attempt, summary.group_size),
    ]
    if figures.throughput is not None and figures.iteration_time is not None:
        pieces += [f"{figures.throughput:,.0f} samples/s", f"{phrases.seconds(figures.iteration_time)} each"]
    if figures.goodput is not None:
        pieces.append(f"goodput {figures.goodput:,.0f} samples/s, efficiency {figures.efficiency:.0%}")
    if figures.waiting_share is not None:
        pieces.append(f"{figures.waiting_share:.0%} waiting")
    if figures.prediction_error is not None:
        pieces.append(f"predicted to {figures.prediction_error:.0%}")
    lines = [first, Text("  ".join(pieces))]
    if figures.iterations:
        lines.append(Text(f"gradient noise: {_noise(figures)}"))
    if job.changes:
        lines.append(Text(f"changes of the group: {plain(phrases.group_changes(job.changes))}"))
    if summary.sizing:
        lines.append(Text(f"batch size by {summary.sizer}: {summary.sizing}"))
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def workers_table(job: Shown, width: int, most: int | None = None, wrap: bool = False) -> Table:
    """Make a table of a job's `most` slowest workers; a line for each, unless long ones are to be wrapped.

    It has as many columns as fit into `width` characters, and what is computed at once in jobs in
    micro-batches alone, and ranks where the manager forms the group.
    """
    table = _table()
    table.expand = True
    titles = ["worker", "state", "verdict", "samples"]
    if job.summary.spec.micro_batch is not None:
        titles.append("at once")
    if job.ranks:
        titles.append("rank")
    titles += ["time", "ms/sample", "speed"]
    if width >= _WIDE:
        titles += ["waits", *(shown.title for shown in SHOWN.values())]
    for title in titles:
        right = title not in ("worker", "state", "verdict")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
        table.columns[-1].max_width = _LONGEST_NAME
    table.add_column("why", no_wrap=not wrap, overflow="fold" if wrap else "ellipsis", ratio=1)
    for one in job.figures.workers[:most]:
        each = one.seconds_per_sample.median
        cells = {
            "worker": Text(plain(one.worker), style="bold"),
            "state": Text(one.state),
            "verdict": Text(one.verdict, style=_VERDICTS.get(one.verdict, "")),
            "samples": Text(f"{one.batch_size:,}"),
            "at once": Text(f"{one.at_once:,}"),
            "rank": Text(_number(job.ranks.get(one.worker), "{:,}")),
            "time": Text(
                _UNKNOWN if one.batch_processing_time is None else phrases.seconds(one.batch_processing_time)
            ),
            "ms/sample": Text(_UNKNOWN if each is None else f"{each * 1e3:.3g}"),
            "speed": Text(_number(one.relative_to_others, "{:.2f}×")),
            "waits": Text(_number(one.waiting_share, "{:.0%}")),
        } | {shown.title: Text(_measured(getattr(one, name), shown)) for name, shown in SHOWN.items()}
        table.add_row(*(cells[title] for title in titles), Text(f"{one.verdict_text}; {one.balanced_text}"))
    return table


def events(job: Shown, most: int) -> list[Text]:
    """Draw a job's last events, at most `most`, a line for each as `condensed` has them, oldest first."""
    return [
        Text.assemble(
            (time.strftime("%H:%M:%S ", time.localtime(one.at)), "dim"),
            plain(one.text),
            no_wrap=True,
            overflow="ellipsis",
        )
        for one in condensed(job.events)[-most:]
    ]


def sparkline(durations: Sequence[float], width: int) -> Text:
    """Draw the last iterations' times as bars from 0; the few longest are cut, not to flatten the others."""
    durations = durations[-max(1, width) :]
    longest = max(durations, default=0.0)
    if not longest > 0:
        return Text()
    label = f"  up to {phrases.seconds(longest)}"
    values = durations[-max(1, width - len(label)) :]
    full = sorted(values)[int(_UNCUT * (len(values) - 1))] or longest
    bars = "".join(_BARS[min(len(_BARS) - 1, int(value / full * (len(_BARS) - 1)))] for value in values)
    return Text.assemble((bars, "cyan"), (label, "dim"), no_wrap=True, overflow="crop")


def state(name: str) -> Text:
    """Draw a job's state in its colour."""
    return Text(name, style=_STATES.get(name, "dim"))


def plain(text: str) -> str:
    """Return a text from elsewhere without the characters that move a cursor."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _table() -> Table:
    return Table(box=None, pad_edge=False, header_style="dim")


def _that_fit(lines: Sequence[Mapping[str, Text]], width: int) -> list[str]:
    """Return the columns of jobs for which a terminal has room, and those that every table has."""
    widths = {
        title: max(len(title), *(line[title].cell_len for line in lines), 0) + _GAP for title in _JOB_COLUMNS
    }
    for title in _LEFT_OUT:
        if sum(widths.values()) - _GAP > width:
            del widths[title]
    return list(widths)


def _noise(figures: JobFigures) -> str:
    if not figures.noise_known or figures.noise_scale is None:
        return figures.noise_text
    return f"{phrases.samples(figures.noise_scale)} samples; {figures.noise_text}"


def _policy(summary: Any) -> str:
    return f"{summary.policy} ({summary.predictor})" if summary.predictor else str(summary.policy)


def _measured(value: float | None, shown: ShownColumn) -> str:
    if value is None:
        return _UNKNOWN
    return phrases.seconds(value) if shown.form == "seconds" else _FORMS[shown.form].format(value)


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else form.format(value)
