"""The cost of what befalls a job, over several times that it was caused."""

import statistics
from collections.abc import Sequence


def summary(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of the seconds without a step, and the most of all costs (redone: steps)."""
    still = [cost["still_s"] for cost in costs]
    most = {key: max(cost[key] for cost in costs) for key in ("redone", "attempts")}
    return {"still_s": statistics.median(still), "longest_s": max(still), **most}
