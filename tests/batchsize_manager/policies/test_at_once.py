"""Learning how many micro-batches to compute at once, on times that follow α ln k + β."""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import POLICIES, make_job_policy
from batchsize_manager.policies.curves_in_waves import Alone
from batchsize_manager.policies.waves import Waves
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import Report

MICRO_BATCH = 4


@dataclass
class Device:
    """A simulated device: JABAS's equations 1 and 2 up to `saturated` at once, and a fixed time."""

    alpha: float  # micro-batches per second
    beta: float
    kind: str = "GPU"
    most: int = 16
    saturated: int = 64
    fixed: float = 0.02  # seconds

    def wave(self, at_once):
        """Return the seconds of a wave."""
        if not at_once:
            return 0.0
        return at_once / (self.alpha * math.log(min(at_once, self.saturated)) + self.beta)

    def time(self, number, at_once):
        """Return the seconds of an iteration."""
        full, last = divmod(number, at_once)
        return self.fixed + full * self.wave(at_once) + self.wave(last)

    def best(self, number):
        """Return the shortest time of an iteration, whatever the number at once."""
        return min(self.time(number, at_once) for at_once in range(1, self.most + 1))


def train(policy, devices, micro_batches, iterations=120, noise=0.02, models=None, rest=0):
    """Go through iterations of a job; return, by iteration, each worker's (number, at once), and the job.

    With a rest, an epoch is nine whole batches and one of so many micro-batches.
    """
    rng = np.random.default_rng(1)
    total = micro_batches * MICRO_BATCH
    samples = total * 9 + rest * MICRO_BATCH if rest else total * iterations
    spec = JobSpec(samples, total, micro_batch=MICRO_BATCH)
    job = Job(spec, JobConfig(workers=len(devices)), make_job_policy(policy, models=models))
    for name, device in devices.items():
        job.join(name, name, Bounds(at_once=device.most), 0.0, device=device.kind)
    seen = []
    for iteration in range(iterations):
        parts = {name: job.next_assignment(name, name) for name in devices}
        for name, part in parts.items():
            seconds = devices[name].time(part.count // MICRO_BATCH, part.at_once)
            job.report(name, name, Report(iteration, seconds * rng.lognormal(0, noise)), 0.0)
        seen.append([(part.count // MICRO_BATCH, part.at_once) for part in parts.values()])
    return seen, job


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_finds_the_number_that_is_best(policy):
    """Of workers of one kind, time is within 3% of the best for their share, and stays so."""
    devices = {f"w{i}": Device(alpha=30.0, beta=60.0, most=8) for i in range(3)}
    seen, _ = train(policy, devices, 72)
    assert seen[0] == [(24, 1)] * 3
    tried = {at_once for parts in seen for _, at_once in parts}
    assert {1, 2, 4, 8} <= tried
    for parts in seen[-30:]:
        for (number, at_once), device in zip(parts, devices.values(), strict=True):
            assert device.time(number, at_once) < 1.03 * device.best(number)


@pytest.mark.parametrize(("alpha", "saturated", "wanted"), [(0.0, 64, 1), (30.0, 4, 4), (2.0, 64, 1)])
def test_numbers_that_do_not_pay_are_left(alpha, saturated, wanted):
    """Twice as many are tried once, and given up where the throughput grows by less than 5%."""
    seen, job = train("even", {"w": Device(alpha, 60.0, saturated=saturated)}, 48)
    numbers = [parts[0][1] for parts in seen]
    assert set(numbers[-60:]) == {wanted}
    assert max(numbers) == 2 * wanted
    assert sum(later != earlier for earlier, later in pairwise(numbers)) <= 2 + int(math.log2(wanted))
    (said,) = [event for event in job.outbox.events if "does not pay" in event]
    assert said.startswith(f"GPU: {2 * wanted} micro-batches at once have ")
    assert said.endswith(f"at most {wanted} from now on")


@pytest.mark.parametrize("rest", [1, 3])
def test_short_batches_at_the_end_of_epochs_do_not_disturb(rest):
    """An epoch's last batch, which has no room for as many at once, counts for nothing."""
    seen, _ = train("even", {"w": Device(48.0, 60.0)}, 32, rest=rest)
    assert seen[-2] == [(32, 16)]


def test_unlike_devices_end_together():
    """`learned` splits by waves: the longest time comes close to the best of all splits and numbers."""
    devices = {
        "a": Device(30.0, 60.0, "A", 8),
        "b": Device(5.0, 60.0, "B", 2),
        "c": Device(0.0, 60.0, "C", 1),
    }
    seen, _ = train("learned", devices, 40, iterations=150)
    least = min(
        max(devices["a"].best(a), devices["b"].best(b), devices["c"].best(40 - a - b))
        for a in range(1, 39)
        for b in range(1, 40 - a)
    )
    times = [
        max(device.time(*part) for device, part in zip(devices.values(), parts, strict=True))
        for parts in seen[-20:]
    ]
    assert np.mean(times) < 1.06 * least
    assert least < 0.9 * devices["c"].time(14, 1)


def test_a_newcomer_begins_with_what_its_kind_has_learned():
    """Nothing is tried again by a worker of a known kind, nor in a job that resumes."""
    devices = {"w": Device(30.0, 60.0, most=8)}
    _, job = train("even", devices, 24)
    seen, _ = train("even", {"other": devices["w"]}, 24, 5, models=job.planner.policy.models())
    assert seen == [[(24, 8)]] * 5


@given(
    st.lists(st.floats(0.01, 3.0), min_size=1, max_size=6),
    st.none() | st.integers(1, 6),
    st.floats(0.0, 500.0),
)
def test_what_is_within_a_time_is_the_most(more, at_once, alone):
    """One micro-batch more would take longer than those one after another, and as many do not."""
    seconds = tuple(np.cumsum(more).tolist())
    waves = Waves(seconds, at_once=at_once if at_once and at_once <= len(seconds) else None)
    part = Alone([None, waves])
    other, most = part.within(np.array([alone, alone])).tolist()
    assert other == math.floor(alone)
    assert part.one(1, int(most)) <= alone * (1 + 1e-9) + 1e-9
    assert part.one(1, int(most) + 1) >= alone * (1 - 1e-9) - 1e-9
    assert part.all([7, int(most)]).tolist() == [7.0, part.one(1, int(most))]
