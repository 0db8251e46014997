"""Files of arrivals of jobs: `name,time,application,num_replicas,batch_size`, a row for each job.

There may be a column `priority` as well, a weight above 0; without it each job has 1.
"""

from collections.abc import Sequence
from pathlib import Path

from lab.csv_rows import read_rows
from lab.simulator.workloads import Arrival

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")


def find_workloads(paths: Sequence[Path]) -> list[Path]:
    """Return the files among paths, and in place of a folder its CSV files by name."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"workload {path}: there is no such file or folder")
        files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"workload {path}: there is no CSV file in this folder")
        for file in files:
            if file in found:
                raise ValueError(f"workload {file}: it is given twice")
            found.append(file)
    return found


def read_workload(path: Path) -> list[Arrival]:
    """Read the arrivals of a file, in its order."""
    arrivals = [
        Arrival(
            name=row.text("name"),
            submitted=row.integer("time"),
            application=row.text("application"),
            devices=row.integer("num_replicas", 1),
            batch=row.integer("batch_size", 1),
            priority=row.positive("priority") if "priority" in row.values else 1.0,
        )
        for row in read_rows(path, _COLUMNS, ("priority",))
    ]
    if not arrivals:
        raise ValueError(f"{path}: there is no row")
    return arrivals
