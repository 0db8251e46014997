"""Values that make no sense to a part of the lab: the error names the value and what is allowed."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from batchsize_manager.policies import make_policy
from idl.errors import InvalidRequestError
from lab.attacks.attack import HostileConfig
from lab.bench import against_ddp, node_losses, recovery
from lab.bench.against_ddp import TrainConfig
from lab.bench.balance_play import Change, Noise, play
from lab.bench.group_changes import GroupChangesConfig
from lab.bench.load_generators import LoadConfig
from lab.bench.node_losses import NodesConfig
from lab.bench.recovery import RecoveryConfig
from lab.bench.size_changes import SizesConfig
from lab.bench.step_times import made_up_step_times, make_cluster
from lab.experiments import analysis, equilibrium
from lab.experiments.batch_size_law import Point, fit
from lab.experiments.contention_schedule import Disturbance, Schedule, Task
from lab.experiments.coordination import CoordinationConfig
from lab.experiments.mapping import MappedTraining, MappingConfig
from lab.experiments.noise import NoiseConfig
from lab.experiments.sizers import SizersConfig
from lab.models.resnet import ResNet32
from lab.models.transformer import ByteTransformer
from lab.network import WorkerNetwork
from lab.trace_contention import ContentionTraceConfig
from lab.trace_usage import UsageTraceConfig, usage_trace
from lab.traces import Perturbation

OUT, QUIET = Path("nowhere"), Console(quiet=True)
MACHINES = dict.fromkeys("abc", (np.linspace(0, 1, 4),) * 2)


def hostile(**values):
    """The configuration of an attack."""
    return HostileConfig(**{"seconds": 1, "inputs": None, "seed": 0} | values)


def load(**values):
    """The configuration of the load benchmark."""
    return LoadConfig(**{"jobs": 1, "workers": 8, "seconds": 1} | values)


def usage(**values):
    """A trace of three machines of four steps."""
    return usage_trace(MACHINES, UsageTraceConfig(**{"iterations_per_step": 1} | values))


def two_workers():
    """A cluster of made-up devices."""
    return make_cluster(made_up_step_times(), "made-up", ["small", "large"])


def train(**values):
    """The comparison with DDP."""
    return against_ddp.run(TrainConfig(**values), QUIET)


def played(change):
    """Ten iterations with a change of a worker's speed."""
    return play(make_policy("even"), two_workers(), [change], Noise(), 10)


def settled(synchronous):
    """The seconds of an update, of a run that has only settled."""
    shown = [
        dict(zip(("seconds", "updates", "accuracy"), row, strict=True)) for row in ((0, 0, 0), (1, 4, 0))
    ]
    return analysis.per_update_seconds([{"duration": 1.0}] * 2, shown, 2, synchronous, settle=2)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: hostile(seconds=0), "seconds 0"),
        (lambda: GroupChangesConfig(workers=1), "workers 1: must be at least 2"),
        (
            lambda: GroupChangesConfig(workers=4, batch_size=50),
            "batch size 50: must be a multiple of the 4 workers",
        ),
        (
            lambda: GroupChangesConfig(changes=("drain", "luck")),
            "changes luck: there are join, drain, kill, kill-while-forming",
        ),
        (lambda: load(jobs=0), "jobs 0"),
        (lambda: train(shares=(0.5, 0.5), total_batch_size=201), "multiple of 2"),
        (lambda: train(total_batch_size=5000), "1437 training images"),
        (lambda: NoiseConfig(batches=(8,)), r"batches \(8,\): give at least two"),
        (lambda: NoiseConfig(halved=(16, 7)), r"halved \(16, 7\): give even numbers"),
        (lambda: MappingConfig(out=OUT, mappings=("1", "5")), "mappings '5': there are 1, 2, 4, 8,"),
        (
            lambda: SizersConfig(runs=("nothing:none",)),
            "give SIZER:RULE, with a sizer of fixed, goodput, similarity",
        ),
        (lambda: SizersConfig(batch_size=64, most=32), "most 32: must be at least batch_size, 64"),
        (
            lambda: CoordinationConfig(schemes=("flexrr",)),
            "schemes 'flexrr': there are bsp, asp, ssp, lb-bsp",
        ),
        (lambda: CoordinationConfig(policies=("best",)), "policies 'best': there are "),
        (lambda: Disturbance(file=OUT, usage=OUT), "--schedule and --usage: give one of them"),
        (lambda: Perturbation(noise=-0.1), "noise -0.1"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make, said):
    """By the configuration, as a mistake of the user."""
    with pytest.raises(InvalidRequestError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: recovery.run(RecoveryConfig(events=("luck",)), QUIET), "events luck: there"),
        (lambda: SizesConfig(sizes=(64, 80)), "sizes .64, 80.: differ too much for epochs of 4 batches"),
        (lambda: SizesConfig(epochs=18), "epochs 18: must be a multiple of 4"),
        (
            lambda: node_losses.run(NodesConfig(losses=("sun",)), QUIET),
            "losses sun: there are worker, shard, manager, controller, head",
        ),
        (lambda: make_cluster(made_up_step_times(), "made-up", ["huge"]), r"'huge'.*small, medium"),
        (
            lambda: make_cluster(made_up_step_times(), "made-up", ["small"] * 2, 513),
            "513.* 16 to 512 samples",
        ),
        (lambda: played(Change(4, "medium", 2.0)), r"'medium'.*small, large"),
        (
            lambda: MappedTraining("digits", MappingConfig(out=OUT, samples=20)),
            "batch size 48: must be at most the 20 samples",
        ),
        (
            lambda: Schedule((Task(3, 0, 1),), "seconds", "made up").check_workers(3),
            "made up: a task for worker 3, but there are 3 workers",
        ),
        (lambda: fit([Point(8, 1, 2.0, 0.0)]), "points of 1 sizes: a law takes at least two"),
        (lambda: settled(synchronous=True), "settle 2: leaves no"),
        (lambda: equilibrium.trajectory([{"total": 1}], 99), "no iteration has a batch of 99"),
        (lambda: ContentionTraceConfig(workers=0), "workers 0: must be at least 1"),
        (lambda: ContentionTraceConfig(longest=19), "longest 19: must be at least the shortest, 20"),
        (lambda: usage(machines=("a", "a")), "machine 'a': there is none, or it is named twice"),
        (lambda: usage(workers=4, iterations=4), "enough for 3 workers: each worker needs 4 steps"),
        (
            lambda: usage(machines=("a", "b"), workers=1, iterations=4),
            "1 workers need fewer machines: b would",
        ),
        (lambda: ResNet32(norm="layer"), "norm 'layer': must be 'batch' or 'group'"),
        (lambda: ByteTransformer(width=10), "width 10: must be a multiple of the 4 heads"),
        (lambda: WorkerNetwork(101), "places 101"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(make, said):
    """By the function that it is given to."""
    with pytest.raises(ValueError, match=said):
        make()
