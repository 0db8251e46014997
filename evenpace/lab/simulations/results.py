"""The file of the results of simulations, from which a later run takes those that it need not run again.

It is JSON, a line for each simulation::

    {"simulations": [
     {"policy", "workload": path, "inputs": digest of arrivals and measurements,
      "conditions": {"cluster", "rules", "interval", "restart_cost": null for that of the rules},
      "figures": {"jobs", "mean_completion_s", "p99_completion_s", "makespan_s", "restarts", "device_hours"},
      "lives": [{"name", "application", "submitted", "started", "ended", "restarts", "device_seconds",
         "placements": [[time, [[node, devices], ...]], ...], "batches": [[time, samples], ...],
         "epochs": [time, ...]}]}]}

Times are in seconds from the start of the simulation.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from evenpace.reports import files
from scheduler.simulator.record import Life, summary


@dataclass(frozen=True)
class Simulation:
    """What a simulation is made of: two with equal ones have equal results.

    Attributes:
        policy: Name of the policy.
        inputs: Digest of arrivals and measurements.
        conditions: Settings of cluster and clock, by name.
    """

    policy: str
    inputs: str
    conditions: tuple[tuple[str, str | int | None], ...]


class Results:
    """The results so far, kept in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        """Read the results that a file has.

        Args:
            path: The file, which need not exist; None to keep results in memory only.

        Raises:
            ValueError: The file has something else.
            OSError: It cannot be read.
        """
        self._path = path
        self._lines: dict[Simulation, str] = {}
        self._figures: dict[Simulation, dict[str, Any]] = {}
        if path is None or not path.exists():
            return
        try:
            for result in json.loads(path.read_text())["simulations"]:
                conditions = tuple(result["conditions"].items())
                simulation = Simulation(result["policy"], result["inputs"], conditions)
                self._remember(simulation, result)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path}: not the results of simulations; name another file, or remove this one"
            ) from error

    def __contains__(self, simulation: Simulation) -> bool:
        """Return whether a simulation has been run."""
        return simulation in self._figures

    def figures(self, simulation: Simulation) -> dict[str, Any]:
        """Return the figures of a simulation.

        Raises:
            KeyError: It has not been run.
        """
        return self._figures[simulation]

    def add(self, simulation: Simulation, workload: Path, lives: Sequence[Life]) -> None:
        """Add the result of a simulation, to the file, too.

        Args:
            simulation: What it was made of.
            workload: File of its arrivals.
            lives: Of its jobs.

        Raises:
            OSError: The file cannot be written.
        """
        result = {
            "policy": simulation.policy,
            "workload": str(workload),
            "inputs": simulation.inputs,
            "conditions": dict(simulation.conditions),
            "figures": summary(lives),
            "lives": [asdict(life) for life in lives],
        }
        self._remember(simulation, result)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # In an order that does not depend on which simulation ended first.
            lines = sorted(self._lines.values())
            files.replace(self._path, ('{"simulations": [\n' + ",\n".join(lines) + "\n]}\n").encode())

    def _remember(self, simulation: Simulation, result: Mapping[str, Any]) -> None:
        self._lines[simulation] = json.dumps(result)
        self._figures[simulation] = result["figures"]
