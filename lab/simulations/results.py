"""The file of the results of simulations, from which a later run takes those that it need not run again.

It is JSON, a line for each simulation::

    {"simulations": [
     {"policy", "workload": path, "inputs": digest of arrivals and measurements,
      "conditions": {"cluster", "rules", "interval", "restart_cost": null for that of the rules, and what is
         not by default},
      "figures": {"jobs", "mean_completion_s", "median_completion_s", "p99_completion_s", "makespan_s",
         "restarts", "losses", "device_hours", "utilisation", "mean_queue", "rho_below_2", "median_rho",
         "p99_rho", "worst_rho"},
      "lives": [{"name", "application", "submitted", "started", "ended", "restarts", "device_seconds",
         "placements": [[time, [[node, devices], ...]], ...], "batches": [[time, samples], ...],
         "epochs": [time, ...], "fair_share": {"contention", "devices", "completion", "rho"}}]}]}

Times are in seconds from the start of the simulation, completion times from a job's submission. Results from
before some figures were there stay in the file until their simulation is run again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evenpace.reports import files
from lab.simulator.fairness import FairShare
from lab.simulator.record import FIGURES, Life, summary


@dataclass(frozen=True)
class Simulation:
    """What a simulation is made of: two with equal ones have equal results."""

    policy: str  # name of the policy
    inputs: str  # digest of arrivals and measurements
    conditions: tuple[tuple[str, int | float | str | None], ...]  # settings of cluster and clock, by name


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation."""

    lives: Sequence[Life]  # of its jobs
    shares: Sequence[FairShare]  # each job's training on its fair share, in the same order
    figures: Mapping[str, Any]  # over all jobs, by name

    @classmethod
    def of(cls, lives: Sequence[Life], shares: Sequence[FairShare], devices: int) -> "Outcome":
        """Return the outcome with the figures of these lives on a cluster's number of devices."""
        outcome = cls(lives, shares, {})
        return replace(outcome, figures=summary(lives, outcome.rhos, devices))

    @property
    def rhos(self) -> list[float]:
        """The finish-time fairness of each job, in the order of the lives."""
        return [share.rho(life) for life, share in zip(self.lives, self.shares, strict=True)]


class Results:
    """The results so far, in a file that need not exist yet, or, without a path, in memory only."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lines: dict[Simulation, str] = {}
        self.outcomes: dict[Simulation, Outcome] = {}  # of simulations that have been run
        if path is None or not path.exists():
            return
        try:
            for result in json.loads(path.read_text())["simulations"]:
                conditions = tuple(result["conditions"].items())
                simulation = Simulation(result["policy"], result["inputs"], conditions)
                self._lines[simulation] = json.dumps(result)
                if result["figures"].keys() >= FIGURES:
                    self.outcomes[simulation] = _outcome(result)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: not the results of simulations; name another file, or remove this one"
            ) from error

    def add(self, simulation: Simulation, workload: Path, outcome: Outcome) -> None:
        """Add the result of a simulation, to the file, too."""
        self.outcomes[simulation] = outcome
        if self._path is None:
            return
        told = zip(outcome.lives, outcome.shares, outcome.rhos, strict=True)
        result = {
            "policy": simulation.policy,
            "workload": str(workload),
            "inputs": simulation.inputs,
            "conditions": dict(simulation.conditions),
            "figures": outcome.figures,
            "lives": [
                asdict(life) | {"fair_share": asdict(share) | {"rho": rho}} for life, share, rho in told
            ],
        }
        self._lines[simulation] = json.dumps(result)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # In an order that does not depend on which simulation ended first.
        lines = sorted(self._lines.values())
        files.replace(self._path, ('{"simulations": [\n' + ",\n".join(lines) + "\n]}\n").encode())


def _outcome(result: Mapping[str, Any]) -> Outcome:
    """Return the outcome that a file has (KeyError, TypeError, ValueError: something is of another form)."""
    lives, shares = [], []
    for told in result["lives"]:
        share = told["fair_share"]
        shares.append(FairShare(share["contention"], share["devices"], share["completion"]))
        life = Life(**{name: value for name, value in told.items() if name != "fair_share"})
        life.placements = [
            (time, tuple((node, count) for node, count in placement)) for time, placement in life.placements
        ]
        life.batches = [(time, samples) for time, samples in life.batches]
        lives.append(life)
    return Outcome(lives, shares, result["figures"])
