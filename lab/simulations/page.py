"""The page that shows simulations: one file that loads nothing else."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evenpace.reports import numbers
from evenpace.reports.drawing import Panel, svg
from evenpace.reports.gantt import Had, gantt
from evenpace.reports.style import WorkerStyle, worker_styles
from evenpace.reports.templates import write_page
from lab.simulations import panels
from lab.simulations.results import Outcome
from lab.simulations.tables import mean, title
from lab.simulator.record import Life, Span
from lab.simulator.rules import Rules
from scheduler.allocation import devices
from scheduler.nodes import Cluster

_FIGURES = (
    ("mean completion time (s)", "mean_completion_s", ",.1f"),
    ("mean completion time, published (s)", "published_mean_completion_s", ",.1f"),
    ("median completion time (s)", "median_completion_s", ",.1f"),
    ("99th percentile of completion times (s)", "p99_completion_s", ",.0f"),
    ("makespan (s)", "makespan_s", ",.0f"),
    ("restarts", "restarts", ",.0f"),
    ("devices lost with a node", "losses", ",.0f"),
    ("device hours", "device_hours", ",.1f"),
    ("utilisation", "utilisation", ".1%"),
    ("jobs that wait, mean", "mean_queue", ",.2f"),
    ("ρ, median", "median_rho", ".2f"),
    ("ρ, 99th percentile", "p99_rho", ".2f"),
    ("ρ, worst", "worst_rho", ".2f"),
    ("jobs with ρ < 2", "rho_below_2", ".1%"),
)


def write_simulations_page(
    outcomes: Mapping[Path, Mapping[str, Outcome]],
    figures: Mapping[str, Mapping[str, Mapping[str, Any]]],
    cluster: Cluster,
    rules: Mapping[str, Rules],
    path: Path,
    conditions: Mapping[str, float | str] | None = None,
) -> None:
    """Write the page of simulations, all workloads under the same policies.

    Outcomes are by the workload's path, then by policy; figures, with the published means, by policy, then by
    the workload's path; rules by policy. `conditions` are other settings that are not by default, by name.
    """
    policies = worker_styles(figures)
    lives = [life for its in outcomes.values() for outcome in its.values() for life in outcome.lives]
    models = worker_styles(sorted({life.application for life in lives}))
    means = {
        policy: mean(list(its.values()), [name for _, name, _ in _FIGURES]) for policy, its in figures.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(
        "simulations.html.j2",
        path,
        cluster=cluster,
        clocks=list(dict.fromkeys(map(_clock, rules.values()))),
        conditions=conditions or {},
        policies=policies,
        models=models,
        best=min(means, key=lambda policy: means[policy]["mean_completion_s"] or 0.0),
        means=means,
        mean_rows=_rows(means),
        sections=[
            _section(
                f"workload-{number}",
                workload,
                its,
                {policy: figures[policy][str(workload)] for policy in its},
                (policies, models),
                cluster,
            )
            for number, (workload, its) in enumerate(outcomes.items())
        ],
    )


def _rows(figures: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the names of the figures that are known, each with its text for each policy.

    Where no node was lost, that is left out, too.
    """
    return [
        (label, [numbers.text(its[name], form) for its in figures.values()])
        for label, name, form in _FIGURES
        if any(its[name] is not None and (its[name] or name != "losses") for its in figures.values())
    ]


def _section(
    name: str,
    workload: Path,
    outcomes: Mapping[str, Outcome],
    figures: Mapping[str, Mapping[str, Any]],
    styles: tuple[Mapping[str, WorkerStyle], Mapping[str, WorkerStyle]],
    cluster: Cluster,
) -> dict[str, Any]:
    policies, models = styles
    end = max(1, *(outcome.figures["makespan_s"] for outcome in outcomes.values()))
    drawn: list[Panel] = [
        panels.completions(f"{name}-completions", outcomes, policies),
        panels.fairness(f"{name}-fairness", outcomes, policies),
    ]
    heading = title(workload)
    return {
        "name": name,
        "title": heading,
        "rows": _rows(figures),
        "jobs": len(next(iter(outcomes.values())).lives),
        "distributions": list(map(svg, drawn)),
        "queues": svg(panels.queues(f"{name}-queues", outcomes, policies, end)),
        "policies": [
            {
                "name": policy,
                "gantt": gantt(
                    had(outcome.lives),
                    cluster,
                    models,
                    end,
                    f"Job on each device against time under {policy}, in the colour of its model; "
                    "the jobs in numbers are in the table below.",
                ),
                "in_use": svg(
                    panels.in_use(f"{name}-{number}-in-use", outcome, models, cluster.devices, end)
                ),
                "jobs": _jobs(outcome),
            }
            for number, (policy, outcome) in enumerate(outcomes.items())
        ],
    }


def had(lives: Iterable[Life]) -> list[Had]:
    """Return what jobs had when, for the chart, with their models as groups."""
    return [
        Had(life.name, life.application, *span, _words(life, span)) for life in lives for span in life.spans
    ]


def batches(life: Life, span: Span) -> list[int]:
    """Return the samples of the whole batch during a time, one after the other."""
    before = [samples for time, samples in life.batches if time <= span.start]
    return before[-1:] + [samples for time, samples in life.batches if span.start < time < span.end]


def _words(life: Life, span: Span) -> str:
    """Return a time of a job in words: its job, times, devices and batch."""
    number, nodes = devices(span.placement), len(span.placement)
    sizes = batches(life, span)
    batch = f"{sizes[0]:,}" if sizes[0] == sizes[-1] else f"{sizes[0]:,} to {sizes[-1]:,}"
    return (
        f"{life.name}: {number} {'device' if number == 1 else 'devices'} on {nodes} "
        f"{'node' if nodes == 1 else 'nodes'}, batch {batch}, "
        f"from {numbers.span(span.start)} to {numbers.span(span.end)}"
    )


def _jobs(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rows of a table of jobs, in the order of submission."""
    return [
        {
            "life": life,
            "rho": rho,
            "most_devices": max(devices(span.placement) for span in life.spans),
            "mean_devices": life.device_seconds / life.ran if life.ran else None,
            "first_batch": life.batches[0][1],
            "last_batch": life.batches[-1][1],
        }
        for life, rho in zip(outcome.lives, outcome.rhos, strict=True)
    ]


def _clock(rules: Rules) -> str:
    """Return interval and cost of a change in words."""
    cost = rules.restart_cost
    pause = "each model's pause" if cost is None else f"{numbers.span(cost)} without progress"
    return f"a round every {numbers.span(rules.interval)}, {pause} after a changed placement"
