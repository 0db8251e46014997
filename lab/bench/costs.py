"""The costs of what befalls a job: each cause several times, in turn with the others."""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")


def chosen(kind: str, names: Iterable[str], causes: Mapping[str, T]) -> dict[str, T]:
    """Return the causes of these names, all if there are none (ValueError: a name is not known)."""
    if unknown := sorted({*names} - {*causes}):
        raise ValueError(f"{kind} {', '.join(unknown)}: there are {', '.join(causes)}")
    return {name: causes[name] for name in names or causes}


def measured(
    causes: Mapping[str, T], repeats: int, measure: Callable[[T], dict[str, float]], console: Console
) -> dict[str, Any]:
    """Measure what causes cost, of each `step_s`, `still_s`, `redone` (steps done again) and `attempts`.

    Returned are the median seconds of a step, and by cause the median of the seconds without one, the most of
    all costs, and each.
    """
    costs: dict[str, list[dict[str, float]]] = {name: [] for name in causes}
    for name in track([*causes] * repeats, description="what happens", console=console):
        costs[name].append(measure(causes[name]))
    return {
        "step_s": statistics.median(cost["step_s"] for its in costs.values() for cost in its),
        "costs": {
            name: {
                "still_s": statistics.median(cost["still_s"] for cost in its),
                "longest_s": max(cost["still_s"] for cost in its),
                **{key: max(cost[key] for cost in its) for key in ("redone", "attempts")},
                "each": its,
            }
            for name, its in costs.items()
        },
    }
