"""Values that no part of a manager can take: the error names the value, and what is allowed."""

import math

import numpy as np
import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.planning_config import Task
from batchsize_manager.policies import PolicyOptions, make_policy
from batchsize_manager.policies.at_once import Gains
from batchsize_manager.policies.waves import Waves
from batchsize_manager.sizers import Sizes, Sizing
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.synchronisation import Synchronisation

ASP, BACKUP_OF_4 = Synchronisation("asp"), Synchronisation("backup", replicas_to_aggregate=4)


def learned(sizes, times):
    """Make a policy with a worker's curve from a file."""
    weights = {"sizes": np.array(sizes), "times": np.array(times)}
    return make_policy("learned", PolicyOptions(models={"learned": {"a": weights}}))


def gains(**wrong):
    """Make a learned gain of computing several micro-batches at once, of which something is wrong."""
    model = {"numbers": [1.0, 2.0], "throughputs": [1.0, 1.5], "stopped": [0.0]} | wrong
    return Gains({"w": {name: np.array(value) for name, value in model.items()}})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: JobConfig(workers=0), "workers 0"),
        (lambda: JobConfig(lookahead=-1), "lookahead -1"),
        (lambda: JobConfig(report_timeout=0.0), r"report_timeout 0\.0"),
        (lambda: JobConfig(report_timeout=math.inf), "report_timeout inf"),
        (lambda: JobConfig(report_timeout=math.nan), "report_timeout nan"),
        (lambda: JobConfig(reconnect_grace=-1.0), r"reconnect_grace -1\.0"),
        (lambda: JobConfig(reconnect_grace=math.nan), "reconnect_grace nan"),
        (lambda: JobConfig(keep=-1.0), r"keep -1\.0: must be at least 0"),
        (lambda: JobConfig(silence=0.0, heartbeat=0.0), r"silence 0\.0: must be above 0"),
        (lambda: JobConfig(absence=math.nan), "absence nan"),
        (lambda: JobConfig(return_grace=-0.5), r"return_grace -0\.5"),
        (lambda: JobConfig(heartbeat=10.0), r"heartbeat 10\.0: must be below silence, 10\.0 s"),
        (lambda: JobConfig(lookahead=2, synchronisation=ASP), "lookahead 2: belongs to bsp"),
        (
            lambda: JobConfig(workers=3, synchronisation=BACKUP_OF_4),
            "replicas_to_aggregate 4: must be at most the number of workers, 3",
        ),
        (
            lambda: JobConfig(sizing=Sizing("goodput"), synchronisation=ASP),
            "sizer goodput: belongs to bsp",
        ),
        (
            lambda: JobConfig(sizing=Sizing("goodput"), scale_batch=True),
            "with scale_batch, the batch follows the number of workers",
        ),
        (lambda: Synchronisation("gossip"), "'gossip': there are bsp, ssp, asp, backup"),
        (lambda: Synchronisation("ssp"), "staleness None: ssp needs a number of at least 0"),
        (lambda: Synchronisation("ssp", -1), "staleness -1"),
        (lambda: Synchronisation("asp", 3), "staleness 3: belongs to ssp, but the mode is asp"),
        (
            lambda: Synchronisation("bsp", None, 3),
            "replicas_to_aggregate 3: belongs to backup, but the mode is bsp",
        ),
        (
            lambda: Synchronisation("backup"),
            "replicas_to_aggregate None: backup needs a number of at least 1",
        ),
        (lambda: Synchronisation("backup", None, 0), "replicas_to_aggregate 0"),
        (lambda: Synchronisation("backup", 5, 2), "staleness 5: belongs to ssp"),
        (lambda: Bounds(0), "minimum 0: must be at least 1"),
        (lambda: Bounds(5, 4), "maximum batch size 4.* 5"),
        (lambda: Bounds(1, 4, 0), "granularity 0"),
        (lambda: Bounds(1, 4, 5), "granularity 5.* 4"),
        (lambda: Bounds(5, 7, 4), "granularity 4.* 5.* 7"),
        (lambda: Bounds(at_once=0), "at_once 0: must be at least 1"),
        (lambda: JobSpec(320, 32, micro_batch=0), "micro_batch 0: must be from 1 to .* 32"),
        (lambda: JobSpec(320, 32, micro_batch=33), "micro_batch 33: must be from 1 to .* 32"),
        (lambda: JobSpec.of(100, {}), "must have a size for epoch 0"),
        (lambda: JobSpec.of(100, {1: 5}), "must have a size for epoch 0"),
        (lambda: JobSpec.of(100, {-1: 4, 0: 5}), "must have a size for epoch 0"),
        (
            lambda: JobSpec.of(100, {0: 5, 3: 0}),
            "size 0 from epoch 3 on must be from 1 to the dataset's size, 100",
        ),
        (lambda: JobSpec.of(100, {0: 5, 3: 101}), "size 101 from epoch 3 on"),
        (lambda: Sizes.parse(""), "must be a number, or two"),
        (lambda: Sizes.parse("64:"), "must be a number, or two"),
        (lambda: Sizes.parse("1:2:3"), "must be a number, or two"),
        (lambda: Sizes.parse("0"), "batch_size 0: must be at least 1"),
        (lambda: Sizes.parse("9:3"), "batch_size 9:3: the most must be at least the least, 9"),
        (lambda: Task(10, 64), "micro_batch 64: must be at most the total, 10"),
        (lambda: Task(10, None, 4), "at_once 4: must be 1 without micro-batches"),
        (lambda: Task(4096, 1, 4000), "at_once 4000: must be at least 1 and at most 1024"),
        (lambda: Task(10, None, 1, math.nan), "communication nan: must be at least 0 and below inf"),
        (lambda: Waves(()), r"seconds \(\): must be numbers above 0"),
        (lambda: Waves((1.0, 0.0)), r"seconds \(1.0, 0.0\): must be numbers above 0"),
        (lambda: Waves((1.0, 0.9)), "must not take less than a smaller one"),
        (lambda: Waves((1.0, 2.0), 3), "at_once 3: must be from 1 to 2"),
        (lambda: make_policy("evne"), "'evne'.*even, proportional, leader_straggler"),
        (lambda: PolicyOptions("emma"), "'emma'.*memoryless, ema"),
        (lambda: PolicyOptions("narx", models={"narx": {"w": {"nonsense": np.zeros(3)}}}), "narx"),
        (lambda: learned([], []), "worker 'a'.*shapes"),
        (lambda: learned([1.0] * 3, [1.0] * 2), "worker 'a'.*shapes"),
        (lambda: learned([0.0], [1.0]), "worker 'a'.*shapes"),
        (lambda: learned([[1.0]], [[1.0]]), "worker 'a'.*shapes"),
        (lambda: gains(numbers=[2.0]), "model of worker 'w'"),
        (lambda: gains(numbers=[1.0, 1e15]), "model of worker 'w'"),
        (lambda: gains(throughputs=[1.0, -1.0]), "model of worker 'w'"),
        (lambda: gains(stopped=[]), "model of worker 'w'"),
    ],
)
def test_a_value_that_cannot_be_is_named(make, said):
    """Settings, bounds, sizes, and models from files."""
    with pytest.raises(ValueError, match=said):
        make()
