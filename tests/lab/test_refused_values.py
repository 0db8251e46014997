"""Values that make no sense to a part of the lab: the error names the value and what is allowed."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from idl.errors import InvalidRequestError
from lab.bench import against_ddp, node_losses
from lab.bench.against_ddp import TrainConfig
from lab.bench.group_changes import GroupChangesConfig
from lab.bench.node_losses import NodesConfig
from lab.bench.step_times import made_up_step_times, make_cluster
from lab.experiments import analysis
from lab.experiments.batch_size_law import Point, fit
from lab.experiments.contention_schedule import Disturbance
from lab.experiments.coordination import CoordinationConfig
from lab.experiments.mapping import MappedTraining, MappingConfig
from lab.experiments.noise import NoiseConfig
from lab.experiments.sizers import SizersConfig
from lab.trace_usage import UsageTraceConfig, usage_trace

OUT, QUIET = Path("nowhere"), Console(quiet=True)
MACHINES = dict.fromkeys("abc", (np.linspace(0, 1, 4),) * 2)


def usage(**values):
    """A trace of three machines of four steps."""
    return usage_trace(MACHINES, UsageTraceConfig(**{"iterations_per_step": 1} | values))


def train(**values):
    """The comparison with DDP."""
    return against_ddp.run(TrainConfig(**values), QUIET)


def settled(synchronous):
    """The seconds of an update, of a run that has only settled."""
    shown = [
        dict(zip(("seconds", "updates", "accuracy"), row, strict=True)) for row in ((0, 0, 0), (1, 4, 0))
    ]
    return analysis.per_update_seconds([{"duration": 1.0}] * 2, shown, 2, synchronous, settle=2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: GroupChangesConfig(workers=1), "workers 1: must be at least 2"),
        (
            lambda: GroupChangesConfig(changes=("drain", "luck")),
            "changes luck: there are join, drain, kill, kill-while-forming",
        ),
        (lambda: train(shares=(0.5, 0.5), total_batch_size=201), "multiple of 2"),
        (lambda: NoiseConfig(halved=(16, 7)), r"halved \(16, 7\): give even numbers"),
        (
            lambda: SizersConfig(runs=("nothing:none",)),
            "give SIZER:RULE, with a sizer of fixed, goodput, similarity",
        ),
        (
            lambda: CoordinationConfig(schemes=("flexrr",)),
            "schemes 'flexrr': there are bsp, asp, ssp, lb-bsp",
        ),
        (lambda: Disturbance(file=OUT, usage=OUT), "--schedule and --usage: give one of them"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make, said):
    """By the configuration, as a mistake of the user."""
    with pytest.raises(InvalidRequestError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: node_losses.run(NodesConfig(losses=("sun",)), QUIET),
            "losses sun: there are worker, shard, manager, controller, head",
        ),
        (lambda: make_cluster(made_up_step_times(), "made-up", ["huge"]), r"'huge'.*small, medium"),
        (
            lambda: MappedTraining("digits", MappingConfig(out=OUT, samples=20)),
            "batch size 48: must be at most the 20 samples",
        ),
        (lambda: fit([Point(8, 1, 2.0, 0.0)]), "points of 1 sizes: a law takes at least two"),
        (lambda: settled(synchronous=True), "settle 2: leaves no"),
        (lambda: usage(workers=4, iterations=4), "enough for 3 workers: each worker needs 4 steps"),
        (
            lambda: usage(machines=("a", "b"), workers=1, iterations=4),
            "1 workers need fewer machines: b would",
        ),
    ],
)
def test_a_value_that_is_not_allowed_is_named(make, said):
    """By the function that it is given to."""
    with pytest.raises(ValueError, match=said):
        make()
