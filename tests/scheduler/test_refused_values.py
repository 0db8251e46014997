"""What the scheduler cannot work with: the error names it, and what is allowed."""

from dataclasses import replace

import numpy as np
import pytest

from idl.noise import Noise
from scheduler.allocation import Allocation
from scheduler.autoscaling import scale_up
from scheduler.cluster.events import JobRequest
from scheduler.goodput import Goodput, Limits
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from scheduler.policies.base import Round
from scheduler.policies.occupancy import Occupancy
from scheduler.ray.cluster_settings import ClusterSettings, Device
from scheduler.throughput import Throughput, fit
from scheduler.throughput_curves import ThroughputCurves
from tests.scheduler.policies.rounds import THROUGHPUT, asking

LIMITS = Limits(128, 4096, 32, 512)
GOODPUT = Goodput(THROUGHPUT, Noise(1.0, 1000.0), LIMITS)
ALIKE = Throughput(0.1, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0)


def scaled(rates, nodes=1, target=0.5):
    """The nodes of a job with these rates."""
    return scale_up(np.array(rates), nodes, target=target)


def allocated(policy, cluster=(("gpu", 2, 4),), **lacking):
    """An allocation for a job that asks for a device, and lacks something."""
    job = replace(asking("a", iterations_per_second=len), **lacking)
    return POLICIES[policy]().allocate(Round(60.0, [job], Cluster.of(cluster), Allocation()))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: replace(THROUGHPUT, gradient_base=-1.0), "gradient_base"),
        (lambda: replace(THROUGHPUT, overlap=0.5), "overlap"),
        (lambda: fit({}), "no measurements"),
        (lambda: JobRequest("", 1), "a job needs a name"),
        (lambda: JobRequest("x", 0), "job 'x' asks for 0 devices: at least 1 is needed"),
        (lambda: JobRequest("x", 1, float("nan")), "job 'x' has the weight nan: must be above 0"),
        (lambda: Device.parse("GPU=no"), "device 'GPU=no': must be RESOURCE, or RESOURCE=AMOUNT above 0"),
        (lambda: Device.parse("CPU=0"), "device 'CPU=0': must be RESOURCE, or RESOURCE=AMOUNT above 0"),
        (lambda: ClusterSettings("sia"), "policy 'sia': there are weighted_fair_sharing, priority, tiresias"),
        (lambda: fit({(1, 1, 8): (1.0, 1.0)}), "1.0 s of synchronisation"),
        (lambda: ThroughputCurves([ALIKE] * 2, 0), "2 replicas on 0 nodes"),
        (lambda: Limits(10, 9, 1, 5), "whole batches from 10 to 9"),
        (lambda: replace(GOODPUT, total=4097), "4097 samples: must be from 1 to 4096"),
        (lambda: replace(GOODPUT, noise=Noise(0.0, 0.0)), "no noise scale"),
        (lambda: GOODPUT.best([1, 3], [1, 2]), "at least one on each node"),
        (lambda: scaled([1.0, 0.0]), "rates .*: give a finite number above 0"),
        (lambda: scaled([1.0, 2.0], target=0.7), "target 0.7: must be above 0 and at most 0.666"),
        (
            lambda: allocated("tiresias", devices=None),
            "job 'a' must ask for a number of devices under Tiresias",
        ),
        (
            lambda: allocated("gavel", iterations_per_second=None),
            "job 'a' must have a known speed under Gavel",
        ),
        (
            lambda: allocated("optimus", most_devices=4),
            "job 'a' must have a known remaining time under Optimus",
        ),
        (lambda: allocated("pollux", (("t4", 1, 4), ("a100", 1, 8))), "alike; the cluster has t4, a100"),
        (lambda: Occupancy([2, 2], 16).find_across(5), "1 devices more"),
    ],
)
def test_what_cannot_be_is_named(call, said):
    """Models of jobs, clusters, and what the policies need to know."""
    with pytest.raises(ValueError, match=said):
        call()
