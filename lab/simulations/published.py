"""Published mean completion times of workloads, beside which ours are shown.

Two files lie beside the folders of the workloads, with mean completion times in seconds.
`pollux-published.csv` has a row `load,policy,workload_1,...` for each load and policy; a workload of load 1.5
is `pollux-workloads-1.5/workload-N.csv`, and those of `pollux-workloads` have load 1.
`heterogeneous-published.csv` has a row `policy,workload,mean_completion_s,...` for each policy and workload;
the workload `philly-1` is `heterogeneous-workloads-philly/workload-1.csv`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.csv_rows import read_rows
from scheduler.policies import POLICIES

_CONDITIONS = {"cluster": "gpu=16x4", "rules": "pollux"}
_MIXED_CONDITIONS = {"cluster": "aws=6x4,dgx-ext=2x8,rtx=3x8", "rules": "mixed"}


def published_mean(workload: Path, policy: str, conditions: Mapping[str, Any]) -> float | None:
    """Return the published mean completion time of a workload under a policy, in seconds, if there is one.

    There is one only for the settings, `conditions`, that were published.
    """
    number = re.fullmatch(r"workload-([1-9][0-9]*)\.csv", workload.name)
    if number is None:
        return None
    clock = {"interval": POLICIES[policy].interval, "restart_cost": None}
    folder = workload.resolve().parent
    load = re.fullmatch(r"pollux-workloads(?:-([0-9.]+))?", folder.name)
    arrivals = re.fullmatch(r"heterogeneous-workloads-(\w+)", folder.name)
    if load and conditions == _CONDITIONS | clock:
        path, keys, key = "pollux-published.csv", ("load", "policy"), (load[1] or "1.0", policy)
        column, others = f"workload_{number[1]}", tuple(f"workload_{i}" for i in range(1, 10))
    elif arrivals and conditions == _MIXED_CONDITIONS | clock:
        path, keys = "heterogeneous-published.csv", ("policy", "workload")
        key, column = (policy, f"{arrivals[1]}-{number[1]}"), "mean_completion_s"
        others = (column, "p99_s", "makespan_s", "restarts", "gpu_hours")
    else:
        return None
    if not (folder.parent / path).exists():
        return None
    for row in read_rows(folder.parent / path, keys, others):
        if tuple(map(row.text, keys)) == key:
            return row.positive(column) if row.values.get(column) else None
    return None
