"""The options for how parts let themselves be watched, and the table of metrics."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.observing import METRICS_WORKERS, TRACE_EVERY, Observing
from rpc.address import Address

F = TypeVar("F", bound=Callable[..., Any])

_metrics_option = click.option(
    "--metrics",
    default=None,
    metavar="HOST:PORT",
    help="Let Prometheus scrape figures here, over TLS where --tls is given; see `evenpace metrics`.",
)
_workers_option = click.option(
    "--metrics-workers",
    type=click.IntRange(0),
    default=METRICS_WORKERS,
    show_default=True,
    help="With --metrics: workers of larger jobs have no figures of their own.",
)


_traces_option = click.option(
    "--traces",
    default=None,
    metavar="URL",
    help="Send traces of iterations to this OpenTelemetry collector (OTLP over HTTP), as in "
    "http://127.0.0.1:4318; needs evenpace[traces].",
)
_every_option = click.option(
    "--trace-every",
    type=click.IntRange(1),
    default=TRACE_EVERY,
    show_default=True,
    help="With --traces: of so many iterations, one is traced; the same for all parts.",
)


def observed(function: F) -> F:
    """The options of every part of a job, which get to the command as `observing`."""
    return _traces_option(_every_option(observed_figures(function)))


def observed_manager(function: F) -> F:
    """Likewise, with those of the manager."""
    return _workers_option(observed(function))


def observed_figures(function: F) -> F:
    """Those of a part that has no part in iterations."""

    @_metrics_option
    @functools.wraps(function)
    def command(
        metrics: str | None,
        metrics_workers: int = METRICS_WORKERS,
        traces: str | None = None,
        trace_every: int = TRACE_EVERY,
        **others: Any,
    ) -> Any:
        with user_mistakes():
            address = Address.parse(metrics) if metrics else None
            observing = Observing(address, metrics_workers, traces, trace_every)
        return function(observing=observing, **others)

    return command  # type: ignore[return-value]


@click.command()
@example("evenpace metrics > metrics.md")
def metrics() -> None:
    """Print all metrics as a table in Markdown."""
    from evenpace.metrics.markdown_table import markdown

    click.echo(markdown())
