"""What a job learns of its own speed, and how it uses it."""

from idl.noise import Noise
from lab.simulator.applications import StepTime
from lab.simulator.learning import Learner
from lab.simulator.rules import Rules
from lab.simulator.training import SimulatedJob
from lab.simulator.workloads import Arrival
from scheduler.goodput import Goodput
from scheduler.throughput import fit
from tests.lab.simulator.tiny import SQR, VAR, tiny_application

ONE = (("gpu-0", 1),)
TWO = (("gpu-0", 1), ("gpu-1", 1))
NOISE = Noise(1.0, 12.0)


def learning_job(limits=None):
    """A job of the tiny model whose batch is not its user's."""
    application = tiny_application(limits)
    return application, SimulatedJob(Arrival("tiny-0", 0, "tiny", 1, 16), application, Rules())


def test_goodput_is_that_of_all_that_was_seen():
    """The model is fitted to the first step time of each configuration, and has the last noise."""
    limits = tiny_application().batches["gpu"]
    learner = Learner({"gpu": limits}, None)
    learner.observe("gpu", 1, 1, 4, StepTime(2.0, 0.5), Noise(1.0, 1.0))
    learner.observe("gpu", 2, 3, 4, StepTime(3.0, 1.0), Noise(1.0, 2.0))
    learner.observe("gpu", 1, 1, 4, StepTime(9.0, 0.5), NOISE)

    assert learner.goodput("gpu") == Goodput(
        fit({(1, 1, 4): (2.0, 0.5), (2, 3, 4): (3.0, 1.0)}), NOISE, limits
    )
    assert learner.most_replicas("gpu") == 3


def test_a_job_starts_with_the_initial_batch_and_then_follows_its_goodput():
    """Before it has trained it knows nothing; afterwards it has the batch that its goodput says."""
    application, job = learning_job()
    job.place(TWO, 0, "gpu")
    job.advance(0, 35)
    seen = {(2, 2, 2): application.step_time("gpu", (1, 1), 2)}
    expected = Goodput(fit(seen), Noise(SQR, 4 * VAR), application.batches["gpu"])
    best = expected.best(2, 2)
    total = 2 * best.local * (best.accumulations + 1)

    assert total > 4
    assert job.life.batches == [(0, 4), (35, total)]
    assert job.seen(35, {"gpu": 2}).goodputs == {"gpu": expected}


def test_a_job_may_have_twice_the_devices_that_it_has_trained_on():
    """It starts on one; a pause teaches nothing; 16 samples feed 8 at most."""
    _, job = learning_job()
    seen = [job.seen(0, {"gpu": 2}).most_devices]
    for now, placement in ((0, ONE), (60, TWO), (120, (("gpu-0", 2), ("gpu-1", 2), ("gpu-2", 2)))):
        job.place(placement, now, "gpu")
        job.advance(now, 30)
        seen.append(job.seen(now + 30, {"gpu": 2}).most_devices)
        job.advance(now + 30, 1)
        seen.append(job.seen(now + 31, {"gpu": 2}).most_devices)

    assert seen == [1, 1, 2, 2, 4, 4, 8]
