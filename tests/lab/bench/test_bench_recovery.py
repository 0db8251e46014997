"""`evenpace lab bench recovery`: real faults on a real cluster, and what they cost."""

import pytest
from rich.console import Console

from lab.bench.recovery import RecoveryConfig, run


@pytest.mark.release
def test_costs_of_a_real_job():
    """Each costs what it must at least; without a shard's death, no step is taken back."""
    events = (
        "a worker is killed",
        "a worker joins",
        "a worker freezes, and comes back",
        "the manager vanishes, and closes no connection",
        "a shard is killed",
    )
    config = RecoveryConfig(away=0.5, checkpoint_every=1000, repeats=1, events=events)
    costs = run(config, Console(quiet=True))["costs"]

    assert tuple(costs) == events
    assert [costs[event]["redone"] for event in events[:4]] == [0, 0, 0, 0]
    assert (
        costs["a worker freezes, and comes back"]["still_s"] > 5.0
    )  # silence is ten seconds, less a heartbeat
    assert costs["a shard is killed"]["still_s"] > 0.5
    assert costs["a shard is killed"]["redone"] > 50  # there was no checkpoint but the first
    assert costs["a shard is killed"]["attempts"] >= 1
