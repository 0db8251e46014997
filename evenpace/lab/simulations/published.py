"""Published mean completion times of workloads, beside which ours are shown.

`pollux-published.csv` lies beside the folders of the workloads, with a row `load,policy,workload_1,...`, in
seconds, for each load and policy. A workload of load 1.5 is `pollux-workloads-1.5/workload-N.csv`; those of
`pollux-workloads` have load 1.
"""

import re
from pathlib import Path

from evenpace.lab.csv_rows import read_rows

CONDITIONS = {"nodes": 16, "devices_per_node": 4, "interval": 60, "restart_cost": 30}
"""The settings under which the figures were published."""


def published_mean(workload: Path, policy: str) -> float | None:
    """Return the published mean completion time of a workload under a policy, in seconds, if there is one.

    Raises:
        ValueError: The file of published figures is of another form.
        OSError: It cannot be read.
    """
    workload = workload.resolve()
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
