"""A job whose batches change their size by themselves: where, why, and what is left of it."""

import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import POLICIES, make_job_policy
from batchsize_manager.sizers import Sizes, Sizing
from batchsize_manager.storage.json_values import to_json
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.gradient_norms import GradientNorms, StepNorms
from idl.plan import JobSpec
from idl.records import Report
from tests.batchsize_manager.job.driver import restored

FIXED, PER_SAMPLE = 0.1, 0.001  # seconds of each worker
SCALE = 1000.0  # samples, of the gradient noise


class Run:
    """A job of several workers, which all finish their parts in each iteration, on a made-up clock.

    Args:
        spec: The job's.
        workers: Their names.
        bounds: Of all of them.
        policy: Its name.
        config: Fields of the job's configuration.
    """

    def __init__(self, spec, workers=("a", "b"), bounds=None, policy="even", **config):
        self.config = JobConfig(workers=len(workers), **config)
        self.job = Job(spec, self.config, make_job_policy(policy))
        self.now, self.workers = 0.0, list(workers)
        self.batches = []  # (epoch, start, total)
        self.scalings = []
        for name in workers:
            self.job.join(name, name, bounds or Bounds(), self.now)

    def go(self, iterations):
        """Go through so many iterations; return their sizes."""
        begin = len(self.batches)
        for _ in range(iterations):
            parts = {name: self.job.next_assignment(name, name) for name in self.workers}
            one = next(iter(parts.values()))
            self.batches.append((one.epoch, one.batch_start, one.total))
            assert len({part.scaling for part in parts.values()}) == 1
            self.scalings.append(one.scaling)
            seconds = {name: FIXED + PER_SAMPLE * part.count for name, part in parts.items()}
            self.now += max(seconds.values())
            for name, part in parts.items():
                report = Report(
                    part.iteration, seconds[name], 0.0, norms=norms(part.iteration, parts.values())
                )
                self.job.report(name, name, report, self.now)
        return [total for _, _, total in self.batches[begin:]]


def norms(iteration, parts):
    """Return the norms that gradients have on average: of |G|² = 1 and tr(Σ) = SCALE."""
    counts = [part.count for part in parts if part.count]
    total = sum(counts)
    contributions = [(count, 1.0 + SCALE / count) for count in counts]
    return StepNorms(iteration, GradientNorms.of(contributions, 1.0 + SCALE / total))


def test_batches_follow_the_script_s_schedule_from_the_first_batch_of_an_epoch_on():
    """Each sample of an epoch is in one batch, whatever its size."""
    run = Run(JobSpec.of(100, {0: 10, 1: 25, 2: 40, 4: 100}))
    assert run.go(10 + 4 + 3 + 3 + 1) == [*[10] * 10, *[25] * 4, 40, 40, 20, 40, 40, 20, 100]
    assert run.batches[10] == (1, 0, 25)
    assert run.batches[-1] == (4, 0, 100)
    events = [event for event in run.job.outbox.events if "batch size" in event]
    assert events[0] == "the batch size goes from 10 to 25: the script's size from epoch 1 on"
    assert len(events) == 3


@pytest.mark.ci
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_the_size_comes_near_the_best_goodput(policy):
    """With any policy, whose own time curves count, or else those that are fitted beside it."""
    run = Run(JobSpec(10**6, 64), policy=policy, sizing=Sizing("goodput", Sizes(64, 4096)))
    sizes = run.go(400)

    def goodput(size):
        return size / (FIXED + PER_SAMPLE * size / 2) / (SCALE + size)

    best = max(map(goodput, range(64, 4097)))
    assert sizes[0] == 64
    assert goodput(sizes[-1]) > 0.9 * best
    assert len(set(sizes[-200:])) == 1  # and it stays
    assert goodput(64) < 0.5 * best
    assert "times the goodput of 64" in next(e for e in run.job.outbox.events if "goes from 64 to" in e)


def test_a_batch_shrinks_to_what_is_left_when_a_worker_goes():
    """A size that the sizer has chosen is no reason to wait for another worker."""
    sizing = Sizing("goodput", Sizes(20, 400))
    run = Run(JobSpec(10**6, 20), ("a", "b", "c"), Bounds(maximum=50), sizing=sizing)
    run.go(200)
    assert run.batches[-1][2] == 150
    run.job.leave("c", "c", run.now)
    run.workers.remove("c")
    rest = run.go(3)
    assert rest[-1] == 100
    assert run.job.state == "running"
    run.job.leave("b", "b", run.now)
    run.workers.remove("b")
    assert run.go(3)[-1] == 50


def test_a_job_waits_where_not_even_the_least_batch_is_left():
    """The least size is the user's word."""
    sizing = Sizing("goodput", Sizes(60, 400))
    run = Run(JobSpec(10**6, 60), ("a", "b"), Bounds(maximum=50), sizing=sizing)
    run.go(20)
    run.job.leave("b", "b", run.now)
    assert run.job.state == "gathering"
    assert "less than a batch of 60" in run.job.outbox.events[-1]


def test_a_job_that_starts_from_models_has_no_records_to_go_by():
    """What curves say without a measured iteration is enough to choose a size."""
    run = Run(JobSpec(10**6, 64), policy="learned")
    run.go(30)
    models = run.job.planner.policy.models()
    config = JobConfig(workers=2, sizing=Sizing("goodput", Sizes(64, 4096)))
    job = Job(JobSpec(10**6, 64), config, make_job_policy("learned", models=models))
    for name in ("a", "b"):
        job.join(name, name, Bounds(), 0.0)
    assert job.next_assignment("a", "a").total == 64
    assert job.planner.sizer.reason == "the gradient noise is not known yet"


def test_a_size_outside_of_new_bounds_is_brought_within_them():
    """At once, in the next plan."""
    run = Run(JobSpec(10**6, 64))
    run.go(3)
    run.job.operations.change_sizing(Sizing("goodput", Sizes(100, 200)), run.now)
    assert run.go(2)[-1] == 100
    assert "the batch size goes from 64 to 100: its bounds" in "\n".join(run.job.outbox.events)


@pytest.mark.ci
def test_many_changes_leave_no_growing_state():
    """What is kept of them is as large after 150 as after 60, and so is what policies remember."""
    for policy in ("learned", "proportional"):
        sizes = {epoch: 10 + epoch % 37 for epoch in range(150)}
        run = Run(JobSpec.of(50, sizes), policy=policy)
        lengths = []
        for epochs in (60, 150):
            while run.batches[-1:] == [] or run.batches[-1][0] < epochs - 1:
                run.go(1)
            lengths.append(len(to_json(run.job.saved)) - len(to_json(run.job.spec)))
        assert lengths[1] < 1.05 * lengths[0]
        assert len(run.job.saved.batch_changes) == 20


def test_a_job_goes_back_further_than_its_changes_only_with_a_place():
    """Shards that were told where batches begin know it; others get an error that says so."""
    run = Run(JobSpec.of(50, {epoch: 10 + epoch % 37 for epoch in range(300)}))
    run.go(700)
    epoch, start, _ = run.batches[50]
    for name in run.workers:
        run.job.recover(name, name, 0, run.now)
    with pytest.raises(InvalidRequestError, match=r"iteration 50: .* give place"):
        run.job.rewind("a", "a", 1, 50, run.now)
    run.job.rewind("a", "a", 1, 50, run.now, (epoch, start))
    run.job.rewind("b", "b", 1, 50, run.now, (epoch, start))
    before, run.batches = run.batches, []
    run.go(100)
    assert run.batches == before[50:150]


def test_a_restored_job_goes_on_with_its_sizes():
    """It is where it was, with the sizer that an operator has chosen."""
    run = Run(JobSpec(10**6, 64))
    run.go(30)
    said = run.job.operations.change_sizing(Sizing("goodput", Sizes(64, 4096)), run.now)
    assert said == (
        "an operator has changed the sizer from fixed to goodput, for batches of 64 to 4,096 samples, "
        "from iteration 30 on"
    )
    run.go(100)
    assert run.batches[-1][2] > 200
    again = restored(run.job, run.config)
    assert again.planner.sizer.name == "goodput"
    assert again.planner.batches.total == run.job.planner.batches.total
    assert again.planner.batches.following(130) == run.job.planner.batches.following(130)


def test_a_size_that_a_sizer_chooses_is_not_set_by_hand():
    """The error says what to do."""
    run = Run(JobSpec(10**6, 64), sizing=Sizing("goodput"))
    with pytest.raises(InvalidRequestError, match="the sizer goodput chooses it; set the sizer fixed before"):
        run.job.operations.change_batch_size(128, run.now)
    run.job.operations.change_sizing(Sizing("fixed"), run.now)
    run.job.operations.change_batch_size(128, run.now)
    assert run.go(2)[-1] == 128


def test_assignments_say_what_a_batch_is_worth_in_those_of_the_first_size():
    """The gain is AdaScale's, and the progress is the sum of the gains; the first size has none to say."""
    run = Run(JobSpec.of(400, {0: 10, 1: 40, 3: 10}))
    run.go(40 + 2 * 10 + 5)
    assert run.scalings[:40] == [None] * 40
    gain = (SCALE / 10 + 1) / (SCALE / 40 + 1)
    for number, scaling in enumerate(run.scalings[40:60]):
        assert (scaling.size, scaling.gain) == (40, pytest.approx(gain))
        assert scaling.progress == pytest.approx(40 + number * gain)
    for number, scaling in enumerate(run.scalings[60:]):
        assert (scaling.size, scaling.gain) == (10, 1.0)
        assert scaling.progress == pytest.approx(40 + 20 * gain + number)


def test_repeated_iterations_have_the_same_scaling():
    """After the job has gone back, and after the manager was started again."""
    run = Run(JobSpec.of(400, {0: 10, 1: 40, 3: 10}))
    run.go(70)
    again = restored(run.job, run.config)
    before = run.scalings[45:70]
    for job in (run.job, again):
        number = job.attempts.number
        if job is run.job:
            number = job.recover("a", "a", 0, run.now)
        for name in ("a", "b"):
            job.must_recover(name, name)
            job.rewind(name, name, number, 45, run.now)
        run.job, run.scalings = job, []
        run.go(25)
        assert run.scalings == before
