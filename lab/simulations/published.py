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
    clock = {"interval": POLICIES[policy].interval, "restart_cost": None}
    if conditions == _CONDITIONS | clock:
        return _of_like_devices(workload.resolve(), policy)
    if conditions == _MIXED_CONDITIONS | clock:
        return _of_mixed_devices(workload.resolve(), policy)
    return None


def _of_like_devices(workload: Path, policy: str) -> float | None:
    load = re.fullmatch(r"pollux-workloads(?:-([0-9.]+))?", workload.parent.name)
    number = re.fullmatch(r"workload-([1-9])\.csv", workload.name)
    path = workload.parent.parent / "pollux-published.csv"
    if not load or not number or not path.exists():
        return None
    columns = [f"workload_{i}" for i in range(1, 10)]
    for row in read_rows(path, ("load", "policy"), columns):
        if (row.text("load"), row.text("policy")) == (load[1] or "1.0", policy):
            column = f"workload_{number[1]}"
            return row.positive(column) if row.values.get(column) else None
    return None


def _of_mixed_devices(workload: Path, policy: str) -> float | None:
    arrivals = re.fullmatch(r"heterogeneous-workloads-(\w+)", workload.parent.name)
    number = re.fullmatch(r"workload-([1-9][0-9]*)\.csv", workload.name)
    path = workload.parent.parent / "heterogeneous-published.csv"
    if not arrivals or not number or not path.exists():
        return None
    others = ("p99_s", "makespan_s", "restarts", "gpu_hours")
    for row in read_rows(path, ("policy", "workload", "mean_completion_s"), others):
        if (row.text("policy"), row.text("workload")) == (policy, f"{arrivals[1]}-{number[1]}"):
            return row.positive("mean_completion_s")
    return None
