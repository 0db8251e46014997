"""The registry of models by worker and by kind of device: of use to workers that join, and bounded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import Participant, PolicyOptions, make_job_policy
from batchsize_manager.policies.model_registry import KINDS, ModelRegistry
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import Report
from predictors import PREDICTORS, DeviceKind

SECONDS = {"fast": 0.01, "slow": 0.03}  # for a sample, by kind of device


def weights(number):
    """Return a model that a number tells from others."""
    return {"x": np.array([float(number)])}


def member(name, kind=""):
    """Return a member with the default bounds."""
    return Participant(name, Bounds(), kind)


class Workers:
    """A job whose workers are as fast as their devices; no name is used twice."""

    def __init__(self, *kinds, models=None, policy="learned", predictor="ema", first=0, started=0):
        options = PolicyOptions(predictor, models=models or {})
        self.job = Job(
            JobSpec(10**6, 400),
            JobConfig(workers=len(kinds)),
            make_job_policy(policy, options),
            first,
        )
        self.kinds, self.now, self.started = {}, 0.0, started
        for kind in kinds:
            self.start(kind)

    def start(self, kind, name=None):
        """Let a worker join, under a name with a number that no other has had."""
        self.started += 1
        name = name or f"host-{self.started}"
        self.kinds[name] = kind
        self.job.join(name, name, Bounds(), self.now, device=kind)
        return name

    def leave(self, name):
        """Let a worker leave."""
        del self.kinds[name]
        self.job.leave(name, name, self.now)

    def counts(self):
        """Return each worker's number of samples in the next iteration."""
        return {name: self.job.next_assignment(name, name).count for name in self.kinds}

    def iterate(self, iterations=1):
        """Let all workers report iterations."""
        for _ in range(iterations):
            self.now += 1
            for name, kind in self.kinds.items():
                part = self.job.next_assignment(name, name)
                seconds = max(SECONDS[kind] * part.count, 1e-6)
                self.job.report(name, name, Report(part.iteration, seconds), self.now)


@pytest.mark.parametrize(
    ("policy", "predictor"), [("learned", "ema"), ("proportional", "ema"), ("proportional", "arx")]
)
def test_a_newcomer_of_a_known_kind_starts_as_this_kind_does(policy, predictor):
    """A newcomer's first batch follows from its kind's speed, or else from the average speed."""
    for kind, share in (("slow", 400 / 7), ("unheard of", 400 / 3), ("", 400 / 3)):
        workers = Workers("fast", "fast", "slow", policy=policy, predictor=predictor)
        workers.iterate(8)
        workers.leave("host-3")
        workers.iterate(3)
        newcomer = workers.start(kind)
        assert workers.counts()[newcomer] == pytest.approx(share, abs=8)


def test_a_member_that_comes_back_starts_as_itself():
    """A worker's own model is preferred to its kind's, until another member takes its place."""
    workers = Workers("fast", "fast", "slow")
    workers.iterate(8)
    own = workers.job.planner.policy.models()["learned"]["host-3"]
    workers.leave("host-3")
    workers.iterate(3)
    workers.start("fast", "host-3")
    assert workers.counts()["host-3"] == pytest.approx(400 / 7, abs=8)
    np.testing.assert_equal(workers.job.planner.policy.models()["learned"]["host-3"], own)


NAMES = st.integers(0, 12).map(lambda n: f"w{n}")
KIND_NAMES = st.integers(0, KINDS + 50).map(lambda n: f"GPU {n}" if n else "")


@settings(deadline=None, max_examples=200)
@given(
    st.dictionaries(NAMES, st.just(weights(-1)), max_size=8),
    st.lists(st.dictionaries(NAMES, KIND_NAMES, max_size=6), max_size=300),
    st.sampled_from(["learned", "narx"]),
)
def test_the_registry_is_bounded_while_workers_come_and_go(before, memberships, predictor):
    """The registry has no more models than members at once and kinds; members' own are the latest."""
    registry = ModelRegistry({predictor: before, "ema": before})
    most = 0
    for number, members in enumerate(memberships):
        most = max(most, len(members))
        registry.set_members([member(name, kind) for name, kind in members.items()])
        latest = {name: weights(number) for name in members}
        registry.update({predictor: latest})
        for name, models in registry.models().items():
            kinds = [key for key in models if isinstance(key, DeviceKind)]
            assert len(models) - len(kinds) <= most
            assert len(kinds) <= KINDS
            if name == predictor:
                assert models.items() >= latest.items()
                for kind in members.values():
                    assert models[DeviceKind(kind)] == weights(number)
        for key, kind in members.items():
            assert registry[predictor][key] == weights(number)
            if kind:
                registry.set_members([member("newcomer", kind)])
                assert registry[predictor]["newcomer"] == weights(number)
                break


def test_of_more_kinds_than_are_kept_those_used_last_are():
    """Devices may have any names, a new one each time: the kinds used last are kept."""
    registry = ModelRegistry({})
    for number in range(KINDS + 50):
        registry.set_members([member("w", f"GPU {number}"), member("v", "GPU 3")])
        registry.update({"learned": {"w": weights(number), "v": weights(-1)}})
    kinds = registry.models()["learned"].keys() - {"w", "v"}
    assert kinds == {DeviceKind(f"GPU {number}") for number in (3, *range(51, KINDS + 50))}


@pytest.mark.parametrize("predictor", sorted({*PREDICTORS} - {"memoryless", "arx"}))
def test_the_registry_outlives_any_policy(predictor):
    """A job that goes on with another policy, or from a checkpoint, has all models learned before."""
    workers = Workers("fast", "slow")
    workers.iterate(8)
    before = workers.job.planner.policy.models()
    for _ in range(3):
        workers = Workers(
            "fast",
            "slow",
            models=workers.job.planner.policy.models(),
            policy="proportional",
            predictor=predictor,
        )
        workers.iterate(3)
    np.testing.assert_equal(workers.job.planner.policy.models()["learned"], before["learned"])
