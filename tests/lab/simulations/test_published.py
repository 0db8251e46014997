"""Simulations of published workloads, against the published results."""

import statistics
from dataclasses import replace

import pytest

from lab.simulations.published import published_mean
from lab.simulations.trace_files import read_applications
from lab.simulations.workload_files import read_workload
from lab.simulator.fairness import fair_shares
from lab.simulator.rules import LIMITS, RULES, Rules
from lab.simulator.simulation import simulate
from scheduler.nodes import Cluster
from scheduler.policies import POLICIES
from tests import SHARED_DATA

DATA = SHARED_DATA / "cluster-traces"
PHILLY = DATA / "heterogeneous-workloads-philly"
MIXED = [("aws", 6, 4), ("dgx-ext", 2, 8), ("rtx", 3, 8)]
MIXED_CLUSTER = {"cluster": "aws=6x4,dgx-ext=2x8,rtx=3x8", "rules": "mixed"}
LIKE_CLUSTER = {"cluster": "gpu=16x4", "rules": "pollux"}
WORKLOADS = [
    DATA / "pollux-workloads-0.5" / "workload-1.csv",
    DATA / "pollux-workloads-0.5" / "workload-2.csv",
    DATA / "pollux-workloads" / "workload-1.csv",
]

with_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data/cluster-traces")


@pytest.fixture(scope="module")
def applications():
    """The models that were measured."""
    return read_applications([DATA / "pollux"], ["gpu"], LIMITS["pollux"])


def conditions(policy, its=LIKE_CLUSTER):
    """The settings under which figures were published."""
    return {**its, "interval": POLICIES[policy].interval, "restart_cost": None}


CLUSTER = Cluster.of([("gpu", 16, 4)])


def simulated(path, policy, applications):
    """The lives of a workload's jobs on the published cluster."""
    return simulate(read_workload(path), applications, POLICIES[policy](), CLUSTER, Rules())


def mean(path, policy, applications):
    """The mean completion time of a workload on the published cluster."""
    return statistics.fmean(life.completion for life in simulated(path, policy, applications))


def fairness(path, policy, applications):
    """The finish-time fairness of a workload's jobs on the published cluster, ascending."""
    lives = simulated(path, policy, applications)
    shares = fair_shares(lives, read_workload(path), applications, POLICIES[policy](), CLUSTER, Rules())
    return sorted(share.rho(life) for share, life in zip(shares, lives, strict=True))


@pytest.mark.ci
@with_data
@pytest.mark.parametrize(
    "path",
    [WORKLOADS[0], *(pytest.param(path, marks=pytest.mark.release) for path in WORKLOADS[1:])],
    ids=[f"{path.parent.name}/{path.stem}" for path in WORKLOADS],
)
@pytest.mark.parametrize("policy", ["tiresias", "optimus"])
def test_means_equal_the_published_ones_to_the_digit(applications, policy, path):
    """Both policies are deterministic: each job must end in the very second."""
    assert round(mean(path, policy, applications), 1) == published_mean(path, policy, conditions(policy))


@pytest.mark.ci
@with_data
def test_pollux_is_near_the_published_mean(applications):
    """The published search is random, and varies by some percent; ours must be within five."""
    path = WORKLOADS[0]
    published = published_mean(path, "pollux", conditions("pollux"))
    assert mean(path, "pollux", applications) == pytest.approx(published, rel=0.05)


@pytest.mark.release
@with_data
def test_fairness_is_ordered_as_published(applications):
    """Pollux has 99% of the jobs below 2, Tiresias some above 4, Optimus none of these (Pollux, 5.3.1)."""
    rhos = {
        policy: fairness(WORKLOADS[2], policy, applications) for policy in ("pollux", "tiresias", "optimus")
    }

    assert sum(rho < 2 for rho in rhos["pollux"]) >= 0.99 * len(rhos["pollux"])
    assert rhos["tiresias"][-1] > 4 > rhos["optimus"][-1] > rhos["pollux"][-1]


@pytest.fixture(scope="module")
def mixed_applications():
    """The models that were measured on the three kinds of the published mixed cluster."""
    folders = [DATA / "heterogeneous", DATA / "pollux"]
    return read_applications(folders, [kind for kind, _, _ in MIXED], LIMITS["mixed"])


def mixed_mean(number, policy, applications):
    """The mean completion time of a workload on the published mixed cluster."""
    rules = replace(RULES["mixed"], interval=POLICIES[policy].interval)
    arrivals = read_workload(PHILLY / f"workload-{number}.csv")
    lives = simulate(arrivals, applications, POLICIES[policy](), Cluster.of(MIXED), rules)
    return statistics.fmean(life.completion for life in lives)


@pytest.mark.ci
@with_data
@pytest.mark.parametrize("number", [1, *(pytest.param(n, marks=pytest.mark.release) for n in (2, 3, 4))])
def test_gavel_has_the_published_means_to_the_digit(mixed_applications, number):
    """All is deterministic: each job must end in the very second."""
    published = published_mean(PHILLY / f"workload-{number}.csv", "gavel", conditions("gavel", MIXED_CLUSTER))
    assert round(mixed_mean(number, "gavel", mixed_applications), 1) == published


@pytest.mark.release
@with_data
def test_sia_is_near_the_published_mean(mixed_applications):
    """Another solver finds other optima, and another fit other step times; the mean varies by percents."""
    published = published_mean(PHILLY / "workload-3.csv", "sia", conditions("sia", MIXED_CLUSTER))
    assert mixed_mean(3, "sia", mixed_applications) == pytest.approx(published, rel=0.03)
