"""Tables of jobs and workers for a terminal: values in, printable objects out. Nothing is fetched here."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from evenpace.overview import phrases
from evenpace.overview.columns import SHOWN
from evenpace.overview.events import condensed
from evenpace.overview.feed import FollowedJob
from evenpace.overview.figures import JobFigures

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
_LONGEST_NAME = 24  # characters
_SHORTEST_REASON = 40  # characters for which a table needs room, to have a verdict's reason beside it
_UNCUT = 0.97  # share of the bars that have their true height
_BARS_KEPT = 400  # bars, more than a terminal has columns
_UNKNOWN = "-"
# Of measured values, by `Shown.form`: the unit in the column's title, and how many of it are 1.
_UNITS = {"percent": (" %", 100.0), "seconds": (" ms", 1e3), "number": ("", 1.0)}
_GAP = 2  # characters between columns, as rich has it
# Columns of words; those of numbers are right-aligned.
_LEFT = ("job", "worker", "state", "policy", "verdict", "bottleneck", "why")
# Columns that a narrow terminal lacks, the first one first.
_LEFT_OUT = ("goodput", "epoch", "policy", "members", "samples/s", "saved s", "stragglers")
_LEFT_OUT_OF_WORKERS = (
    "bottleneck",
    *(f"{one.title}{_UNITS[one.form][0]}" for one in reversed(SHOWN.values())),
    *("hidden %", "rank", "at once", "state", "ms/sample"),
)


@dataclass(frozen=True)
class Shown:
    """Job at one moment, which the functions below draw."""

    summary: Any  # `JobSummary` of the wire
    figures: JobFigures  # figures of the job, with the workers to be shown
    behind: int  # number of iterations that the figures lack
    events: list[Any]  # last `Event`s of the wire, oldest first
    durations: list[float]  # durations of the last iterations, in seconds
    ranks: Mapping[str, int]  # the workers' ranks in the group that the manager has formed, by name
    changes: Sequence[Any]  # last `GroupChange`s of the wire, oldest first


def shown(job: FollowedJob, limit: int | None = None) -> Shown:
    """Return a job as it is now, with its `limit` slowest workers; None for all."""
    last = job.view.timeline(points=_BARS_KEPT, last=_BARS_KEPT).durations
    figures = job.view.figures(job.states, limit)
    return Shown(job.summary, figures, job.behind, list(job.events), last, job.ranks, list(job.changes))


def jobs_table(jobs: Iterable[Shown], width: int, chosen: str | None = None) -> Table:
    """Make a table of all jobs, a line for each, with as many columns as fit into `width` characters."""
    lines, styles = [], []
    for job in jobs:
        summary, figures = job.summary, job.figures
        stragglers = figures.verdicts["chronic"] + figures.verdicts["passing"]
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
                "× even": Text(_about(figures.speedup_doubt) + _number(figures.speedup, "{:.2f}")),
                "saved s": Text(
                    f"{_about(figures.saved_doubt)}{figures.saved_seconds:,.0f}"
                    if figures.iterations
                    else _UNKNOWN
                ),
                "stragglers": Text(str(stragglers) if figures.iterations else _UNKNOWN),
            }
        )
        styles.append("reverse" if summary.job == chosen else None)
    if not lines:
        table = _table(["job"], width)
        table.add_row(Text("no jobs", style="dim"))
        return table
    titles = _that_fit(lines, _LEFT_OUT, width)
    table = _table(titles, width - sum(_width(lines, title) for title in titles[1:]))
    for line, style in zip(lines, styles, strict=True):
        table.add_row(*(line[str(column.header)] for column in table.columns), style=style)
    return table


def _about(doubt: str) -> str:
    """Return the sign before a number that the headline says is not known well."""
    return "~" if doubt else ""


def details(job: Shown, width: int) -> RenderableType:
    """Draw one job with its workers, the reasons for their verdicts, and its last events."""
    lines = _worker_lines(job)
    complete = [title for title in _worker_columns(lines, width) if title != "why"]
    beside = sum(_width(lines, title) for title in [*complete, "why"]) - _GAP <= width
    parts: list[RenderableType] = [*head(job, width), Text(), workers_table(job, width, reasons=beside)]
    if not beside:
        parts += [Text(), *_reasons(job, lines, width)]
    if job.events:
        parts += [Text(), *events(job, _EVENTS)]
    return Group(*parts)


def reasons_below(job: Shown, width: int) -> list[Text]:
    """Draw the reasons for workers' verdicts in lines of their own, where `workers_table` has no room."""
    lines = _worker_lines(job)
    return [] if _has_reasons(lines, width) else _reasons(job, lines, width)


def _reasons(job: Shown, lines: Sequence[Mapping[str, Text]], width: int) -> list[Text]:
    parts: list[Text] = []
    for one, line in zip(job.figures.workers, lines, strict=True):
        parts += _wrapped(Text.assemble((f"{plain(one.worker)}: ", "bold"), line["why"]), width)
    return parts


def head(job: Shown, width: int) -> list[Text]:
    """Draw `sums` in lines of `width` characters, so that long ones go on in further lines."""
    return [part for line in sums(job) for part in _wrapped(line, width)]


def sums(job: Shown) -> list[Text]:
    """Draw a job's state, sums, transfers, gradient noise, group and batch size, in a line each."""
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
    if figures.transfers_text:
        lines.append(Text(figures.transfers_text))
    if figures.iterations:
        lines.append(Text(f"gradient noise: {_noise(figures)}"))
    if job.changes:
        lines.append(Text(f"changes of the group: {plain(phrases.group_changes(job.changes))}"))
    if summary.sizing:
        lines.append(Text(f"batch size by {summary.sizer}: {summary.sizing}"))
    return lines


def workers_table(job: Shown, width: int, most: int | None = None, *, reasons: bool = True) -> Table:
    """Make a table of a job's `most` slowest workers, a line for each, of at most `width` characters.

    It has as many columns as fit: what is computed at once in jobs in micro-batches alone, ranks where the
    manager forms the group, hidden transfers where any worker has measured them, and `reasons` for verdicts,
    cut where they are longer than the room for them.
    """
    lines = _worker_lines(job)[:most]
    titles = _worker_columns(lines, width)
    if reasons and _has_reasons(lines, width):
        table = _table([*titles, "why"], _LONGEST_NAME)
        table.expand, table.columns[-1].ratio = True, 1
    else:
        table = _table(titles, width - sum(_width(lines, title) for title in titles[1:]))
    for line in lines:
        table.add_row(*(line[str(column.header)] for column in table.columns))
    return table


def _has_reasons(lines: Sequence[Mapping[str, Text]], width: int) -> bool:
    """Return whether a table of workers has room for reasons beside its other columns."""
    used = sum(_width(lines, title) for title in _worker_columns(lines, width))
    return width - used >= _SHORTEST_REASON


def _worker_columns(lines: Sequence[Mapping[str, Text]], width: int) -> list[str]:
    """Return the columns of the table of workers for which a terminal has room, but for reasons."""
    numbers = [{title: cell for title, cell in line.items() if title != "why"} for line in lines]
    return _that_fit(numbers, _LEFT_OUT_OF_WORKERS, width)


def _worker_lines(job: Shown) -> list[dict[str, Text]]:
    """Return the cells of each worker's line in the table of workers, by the columns' titles."""
    lines = []
    for one in job.figures.workers:
        each, spent = one.seconds_per_sample.median, one.batch_processing_time
        cells = {
            "worker": Text(plain(one.worker), style="bold"),
            "state": Text(one.state),
            "verdict": Text(one.verdict, style=_VERDICTS.get(one.verdict, "")),
            "samples": Text(f"{one.batch_size:,}"),
        }
        if job.summary.spec.micro_batch is not None:
            cells["at once"] = Text(f"{one.at_once:,}")
        if job.ranks:
            cells["rank"] = Text(_number(job.ranks.get(one.worker), "{:,}"))
        cells |= {
            "time ms": Text(_three_digits(spent, 1e3)),
            "ms/sample": Text(_three_digits(each, 1e3)),
            "× others": Text(_number(one.relative_to_others, "{:.2f}")),
            "waits %": Text(_number(one.waiting_share, "{:.0f}", 100)),
        }
        if job.figures.exposed_share is not None:
            cells["hidden %"] = Text(_number(one.hidden_share, "{:.0f}", 100))
            cells["bottleneck"] = Text(one.bottleneck or _UNKNOWN)
        for name_, measured in SHOWN.items():
            unit, scale = _UNITS[measured.form]
            value = getattr(one, name_)
            percent = measured.form == "percent"
            text = _number(value, "{:.0f}", scale) if percent else _three_digits(value, scale)
            cells[f"{measured.title}{unit}"] = Text(text)
        lines.append(cells | {"why": Text(f"{one.verdict_text}; {one.balanced_text}")})
    return lines


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


def _table(titles: Iterable[str], longest_name: int) -> Table:
    """Make a table without lines; names, which are in its first column, are cut if they are longer."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in titles:
        justify = "left" if title in _LEFT else "right"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    table.columns[0].max_width = max(1, longest_name)
    return table


def _that_fit(lines: Sequence[Mapping[str, Text]], left_out: Iterable[str], width: int) -> list[str]:
    """Return the titles of columns, without as many of `left_out`, in that order, as have no room."""
    widths = {title: _width(lines, title) for title in (lines[0] if lines else ["worker"])}
    name = next(iter(widths))
    widths[name] = min(widths[name], _LONGEST_NAME + _GAP)
    for title in left_out:
        if sum(widths.values()) - _GAP > width:
            widths.pop(title, None)
    return list(widths)


def _width(lines: Iterable[Mapping[str, Text]], title: str) -> int:
    return max([len(title), *(line[title].cell_len for line in lines)]) + _GAP


def _wrapped(text: Text, width: int) -> list[Text]:
    """Return a text in lines of at most `width` characters, broken between words."""
    lines = list(text.wrap(Console(width=width), width))
    for line in lines:
        line.rstrip()
    return lines


def _noise(figures: JobFigures) -> str:
    if not figures.noise_known or figures.noise_scale is None:
        return figures.noise_text
    return f"{phrases.samples(figures.noise_scale)} samples; {figures.noise_text}"


def _policy(summary: Any) -> str:
    return f"{summary.policy} ({summary.predictor})" if summary.predictor else str(summary.policy)


def _number(value: float | None, form: str, scale: float = 1) -> str:
    return _UNKNOWN if value is None else form.format(value * scale)


def _three_digits(value: float | None, scale: float) -> str:
    """Write a number with three digits, or all before the point: 0.0123, 4.57, 12,346."""
    if value is None:
        return _UNKNOWN
    shown = value * scale
    return f"{shown:,.0f}" if abs(shown) >= 99.95 else f"{shown:#.3g}"
