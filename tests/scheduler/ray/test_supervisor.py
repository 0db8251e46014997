"""What the supervisor of a job on Ray decides, on made-up clusters that obey it and fail at random."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.endings import GONE
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP
from scheduler.ray.submission import MANAGER, Scale, Submission
from scheduler.ray.supervisor import (
    PAUSING,
    Create,
    Drain,
    Finish,
    Pause,
    Remove,
    Resume,
    Seen,
    Start,
    Supervisor,
)

STEP = 0.5  # seconds between two decisions


def submission(workers=2, shards=1, **more):
    """A job of some size."""
    scale = workers if isinstance(workers, Scale) else Scale(workers, workers)
    return Submission(Path("train.py"), name="job", workers=scale, shards=shards, **more)


class Cluster:
    """A cluster with a node for each actor, which does what a supervisor decides.

    What is wrong with a decision shows at once: a worker that is started before the services listen, a start
    with a number that is not above the last, an action about an actor that does not exist.
    """

    def __init__(self, job, *, placed=False):
        self.job = job
        self.supervisor = Supervisor(job, placed=placed)
        self.seen = {}
        self.now = 0.0
        self.state = ""
        self.reason = ""
        self.exchange = ""
        self.kept = False
        self.iteration_seconds = 0.0
        self.finish = None
        self.starts = {}  # all starts, by process
        self.said = []  # all actions but starts
        self.host = "10.0.0.1"  # of actors that are placed from now on

    def step(self, *, place=True):
        """Look, and do what is decided; then actors that were created are placed."""
        self.now += STEP
        assert self.finish is None
        seen = dict(self.seen), self.now, self.state, self.iteration_seconds, self.reason, self.exchange
        for action in self.supervisor.decide(*seen, kept=self.kept):
            self.do(action)
        if place:
            for name, one in self.seen.items():
                if one.phase == "placing":
                    self.seen[name] = Seen("ready", host=self.host, port=5000)
        return self

    def do(self, action):
        """Do what was decided."""
        match action:
            case Create(name):
                assert name not in self.seen or self.seen[name].phase == "lost"
                self.seen[name] = Seen("placing")
            case Start(name, generation):
                self.start(name, generation, action.environment)
            case Remove(name):
                del self.seen[name]
            case Pause():
                self.state = "paused"
            case Resume():
                self.state = "running"
            case Finish():
                self.finish = action
            case Drain(name):
                assert self.seen[name].phase == "running"
        if not isinstance(action, Start):
            self.said.append(action)

    def start(self, name, generation, environment):
        """Start a process, which runs at once."""
        one = self.seen[name]
        services = self.job.services
        assert generation > one.generation
        if name not in services:
            assert all(self.seen[service].address for service in services), f"{name} before its services"
            assert self.seen[MANAGER].generation >= generation or not self.job.fixed_group
        address = f"10.0.0.1:{4000 + services.index(name)}" if name in services else None
        self.seen[name] = replace(
            one, phase="running", generation=generation, status=None, address=address, reason=""
        )
        self.starts.setdefault(name, []).append((generation, environment))

    def change(self, name, **change):
        """Change what is seen of a process."""
        self.seen[name] = replace(self.seen[name], **change)

    def end(self, name, status):
        """End a process."""
        self.change(name, phase="ended", status=status, reason="its last words")

    def lose(self, name):
        """Lose an actor with its node; Ray starts those of services again elsewhere."""
        self.seen[name] = Seen("placing") if name in self.job.services else Seen("lost", reason="gone")

    def all_run(self):
        """Return whether all processes run."""
        return all(name in self.seen and self.seen[name].phase == "running" for name in self.supervisor.names)

    def until_all_run(self):
        """Go on until all processes run, which must not take for ever."""
        for _ in range(200):
            if self.all_run():
                return self
            self.step()
        raise AssertionError(f"it never runs: {self.seen}")


@pytest.fixture
def cluster():
    """A cluster on which all of a job runs."""
    made = Cluster(submission())
    made.until_all_run().state = "running"
    return made


def test_workers_wait_for_the_services():
    """No worker is started before the manager and all shards listen; then all are."""
    made = Cluster(submission(3, shards=2)).step().step()
    assert set(made.starts) == {"manager", "ps-0", "ps-1"}
    made.change("ps-1", address=None)
    made.step().step()
    assert set(made.starts) == {"manager", "ps-0", "ps-1"}
    made.change("ps-1", address="10.0.0.1:4002")
    made.step()
    assert made.all_run()


def test_a_job_is_done_once_its_manager_says_so_and_no_worker_runs(cluster):
    """A worker that ended well alone may have been released: the others go on, however long."""
    cluster.end("w0", 0)
    for _ in range(1000):
        cluster.step()
    assert cluster.finish is None
    assert len(cluster.starts["w0"]) == 1
    assert cluster.supervisor.waited_for(cluster.seen) == []
    cluster.state = "ended"
    assert cluster.step().finish is None
    cluster.end("w1", 0)
    assert cluster.step().finish == Finish("done")


@pytest.mark.parametrize(
    ("status", "finish"),
    [(3, Finish("failed", "w1 ended with status 3:\nits last words")), (-9, Finish("done"))],
)
def test_a_worker_that_fails_at_the_end_fails_the_job(cluster, status, finish):
    """What it should have written may be missing; one that was killed then is not missed."""
    cluster.state = "ended"
    cluster.end("w0", 0)
    cluster.step()
    cluster.end("w1", status)
    assert cluster.step().finish == finish


def test_failures_are_counted_once_and_end_the_job_when_there_are_too_many(cluster):
    """A failed worker is started again, as often as is allowed; losses of nodes are not counted."""
    allowed = cluster.job.max_failures
    for number in range(allowed):
        cluster.end("w1", 1)
        cluster.step()
        cluster.lose("w0")
        cluster.until_all_run()
        assert cluster.supervisor.failures == number + 1
    cluster.end("w1", 1)
    cluster.step()
    assert cluster.finish == Finish("failed", "w1 ended with status 1:\nits last words")


def test_a_service_that_cannot_start_fails_the_job():
    """One that ended before it listened failed; one that had listened is started again without counting."""
    made = Cluster(submission()).until_all_run()
    for _ in range(10):
        made.end("manager", -9)
        made.until_all_run()
    assert made.supervisor.failures == 0
    for _ in range(made.job.max_failures + 1):
        while made.seen["ps-0"].phase != "running":
            made.step()
        made.end("ps-0", 2)
        made.change("ps-0", address=None)
        made.step()
    assert made.finish == Finish("failed", "ps-0 ended with status 2:\nits last words")


@pytest.mark.parametrize("name", ["ps-0", "w1"])
def test_an_actor_that_cannot_begin_is_a_failure(cluster, name):
    """As where evenpace is not installed on a node: each one counts, and the job is not tried for ever."""
    for number in range(cluster.job.max_failures + 1):
        cluster.seen[name] = Seen("lost", actor=str(number), status=1, reason="no module named evenpace")
        cluster.step().step(place=False) if number < cluster.job.max_failures else cluster.step()
    assert cluster.finish == Finish("failed", f"{name} cannot run:\nno module named evenpace")


@pytest.mark.parametrize(("lost", "meeting"), [("w0", "10.0.0.7"), ("w1", "10.0.0.1")])
def test_a_group_meets_where_its_first_worker_is_now(lost, meeting):
    """All of a generation are told one place, also after the first worker was started on another node."""
    made = Cluster(submission(3, shards=0, fixed_group=True)).until_all_run()
    made.host = "10.0.0.7"
    made.lose(lost)
    made.step().until_all_run().step()
    assert {made.starts[name][-1][1]["MASTER_ADDR"] for name in made.supervisor.workers} == {meeting}
    assert {len(made.starts[name]) for name in made.supervisor.workers} == {2}


def test_a_job_that_cannot_start_in_time_says_who_is_missing():
    """It starts with the least number of workers, and waits for no more of them."""
    made = Cluster(submission(Scale(2, 3), start_timeout=10))
    made.step().step().step(place=False)
    made.seen["w1"] = made.seen["w2"] = Seen("placing")
    while made.finish is None and made.now < 20:
        made.step(place=False)
    assert made.finish == Finish("failed", "it could not start within 10 s: w1, w2 did not run")
    made = Cluster(submission(Scale(2, 3), start_timeout=10)).until_all_run()
    made.seen["w2"] = Seen("placing")
    for _ in range(100):
        made.step(place=False)
    assert made.finish is None
    assert made.supervisor.waited_for(made.seen) == ["w2"]


def test_a_group_of_workers_starts_again_together():
    """Each has its rank; when one is lost, the manager and all start again as the next generation."""
    made = Cluster(submission(3, shards=0, fixed_group=True)).until_all_run()
    made.lose("w1")
    made.step().until_all_run()
    made.step()
    for rank, name in enumerate(("w0", "w1", "w2")):
        (_, first), (_, second) = made.starts[name]
        assert first["RANK"] == second["RANK"] == str(rank)
        assert {first["WORLD_SIZE"], second["WORLD_SIZE"]} == {"3"}
        assert second["MASTER_ADDR"] == "10.0.0.1"
    assert len({generation for name in made.job.services for generation, _ in made.starts[name]}) == 2
    assert len({made.seen[name].generation for name in made.supervisor.names}) == 1
    with pytest.raises(InvalidRequestError, match="keeps its size"):
        made.supervisor.resize(4)


@pytest.mark.parametrize(
    ("then", "failures"),
    [(lambda made: made.lose("w1"), 0), (lambda made: made.end("w1", 1), 1), (lambda made: None, 1)],
)
def test_a_group_fails_for_want_of_a_lost_node_without_a_failure(then, failures):
    """Its others fail before the loss is known; where nobody was lost, that is a failure of the group."""
    made = Cluster(submission(3, shards=0, fixed_group=True)).until_all_run()
    made.end("w0", 1)
    made.end("w2", 1)
    made.step(place=False)
    assert made.supervisor.failures == 0
    then(made)
    for _ in range(50):
        made.step()
    assert made.supervisor.failures == failures
    assert made.finish is None


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("failed", "no worker has its state any more", "no worker has its state any more; --resume"),
        ("ended", GONE, f"{GONE}, and with them its parameters; --resume"),
    ],
)
def test_a_job_whose_workers_have_lost_its_parameters_ends(state, reason, said):
    """It does not begin anew without a word; a fixed group does, from the script's checkpoint."""
    made = Cluster(submission(2, shards=0)).until_all_run()
    made.end("w1", 1)
    made.state, made.reason = state, reason
    made.step()
    assert made.finish.state == "failed"
    assert made.finish.reason.startswith(f"{said} starts it again")
    assert made.finish.reason.endswith("w1: its last words")
    made = Cluster(submission(2, shards=0, fixed_group=True)).until_all_run()
    made.state, made.reason = state, reason
    assert made.step().finish is None


def test_a_worker_that_is_killed_after_another_has_finished_loses_nothing():
    """The one that finished had the parameters to the end."""
    made = Cluster(submission(2, shards=0)).until_all_run()
    made.end("w0", 0)
    made.end("w1", -9)
    made.state, made.reason = "ended", GONE
    made.step()
    assert made.finish == Finish("done")


@pytest.mark.parametrize(("iteration_seconds", "last_moment"), [(0.0, 1.0), (10.0, 13.5)])
def test_workers_use_a_node_as_long_as_is_safe(cluster, iteration_seconds, last_moment):
    """They are drained when what is left is needed for what they were given."""
    cluster.iteration_seconds = iteration_seconds
    cluster.change("w1", goes_in=last_moment + 1)
    cluster.step()
    assert Drain("w1") not in cluster.said
    cluster.change("w1", goes_in=last_moment)
    cluster.step()
    assert cluster.said[-1] == Drain("w1")


def test_a_service_that_crashes_again_and_again_is_started_ever_later(cluster):
    """The first time it is started at once, and again so after a while in which it has run."""
    waits = []
    for number in range(10):
        before = cluster.now
        if number == 9:
            cluster.now += 121.0
            before = cluster.now
        cluster.end("manager", -11)
        while cluster.seen["manager"].phase != "running":
            cluster.step()
        waits.append(cluster.now - before)
    assert waits == [0.5, 1.0, 1.5, 2.5, 4.5, 8.5, 16.5, 30.5, 30.5, 0.5]
    assert cluster.supervisor.failures == 0


def test_services_leave_a_node_while_the_job_is_paused(cluster):
    """They end once the workers have finished what they were given; it goes on when all listen again."""
    cluster.change("ps-0", goes_in=0.0)
    cluster.step()
    assert cluster.said[-1] == Pause()
    cluster.state = PAUSING
    cluster.step()
    assert Remove("ps-0") not in cluster.said
    cluster.state = "paused"
    cluster.step()
    assert Remove("ps-0") in cluster.said
    assert Resume() not in cluster.said
    cluster.until_all_run()
    cluster.step()
    assert cluster.said[-1] == Resume()
    assert cluster.step().step().said.count(Resume()) == 1


def test_a_pause_of_an_operator_is_left(cluster):
    """Services move, and the job stays paused."""
    cluster.state = "paused"
    cluster.change("manager", goes_in=0.0)
    cluster.step().until_all_run()
    cluster.step()
    assert Remove("manager") in cluster.said
    assert Resume() not in cluster.said


def test_a_pause_outlives_the_controller(cluster):
    """Another supervisor takes over what the first has saved: it resumes the job, and counts on."""
    cluster.end("w0", 1)
    cluster.step().until_all_run()
    cluster.change("manager", goes_in=0.0)
    cluster.step().step()
    saved = cluster.supervisor.saved
    cluster.supervisor = Supervisor(cluster.job)
    cluster.supervisor.restore(**saved)
    cluster.until_all_run()
    cluster.step()
    assert cluster.said[-1] == Resume()
    assert cluster.supervisor.failures == 1


def test_a_job_is_resized(cluster):
    """More workers are created; those that are too many are drained, and their actors end."""
    cluster.supervisor.resize(4)
    cluster.until_all_run()
    assert set(cluster.starts) >= {"w2", "w3"}
    cluster.supervisor.resize(1)
    cluster.step()
    assert {Drain("w1"), Drain("w2"), Drain("w3")} <= set(cluster.said)
    for name in ("w1", "w2", "w3"):
        cluster.end(name, 0)
    cluster.step().step()
    assert set(cluster.seen) == {"manager", "ps-0", "w0"}
    assert cluster.finish is None
    with pytest.raises(InvalidRequestError, match="workers 0: must be at least 1"):
        cluster.supervisor.resize(0)


@pytest.fixture
def placed():
    """A job of workers that are placed, on which all runs."""
    made = Cluster(submission(Scale(1, 4)), placed=True).step().step()
    assert set(made.seen) == {"manager", "ps-0"}, "no worker before one is placed"
    made.supervisor.place(1, {"a-1": "north", "a-2": "south"})
    made.supervisor.decide(made.seen, made.now)
    assert made.supervisor.present(made.seen) == ["a-1", "a-2"], "they are about to have actors"
    made.until_all_run().state = "running"
    return made


def test_a_placed_job_has_the_workers_that_are_named(placed):
    """Each runs on its node; those that are left out are drained, and do not come back."""
    assert [placed.supervisor.node(name) for name in ("a-1", "a-2", "ps-0")] == ["north", "south", None]
    placed.supervisor.place(3, {"a-1": "north", "a-3": "north"})
    placed.supervisor.place(2, {})  # which is late
    placed.until_all_run()
    assert Drain("a-2") in placed.said
    placed.end("a-2", 0)
    placed.step().step()
    assert placed.supervisor.present(placed.seen) == ["a-1", "a-3"]
    placed.supervisor.place(4, {"a-1": "north", "a-2": "south"})
    placed.step().step()
    assert "a-2" not in placed.supervisor.present(placed.seen)
    with pytest.raises(InvalidRequestError, match="worker a-1: is on north, and cannot move to south"):
        placed.supervisor.place(5, {"a-1": "south"})
    with pytest.raises(InvalidRequestError, match="the cluster decides how many"):
        placed.supervisor.resize(3)
    with pytest.raises(InvalidRequestError, match="is not placed"):
        Supervisor(submission()).place(1, {"a-1": "north"})


@pytest.mark.parametrize("restarted", [False, True])
def test_a_placed_worker_that_is_lost_is_gone(placed, restarted):
    """It is not made again, as its node may be gone; one that fails on its node is started again there."""
    placed.end("a-1", 1)
    placed.step().step().step()
    assert placed.seen["a-1"].phase == "running"
    placed.lose("a-2")
    if restarted:
        del placed.seen["a-2"]  # while there was no controller
        saved = placed.supervisor.saved
        placed.supervisor = Supervisor(placed.job, placed=True)
        placed.supervisor.restore(**saved)
    placed.step().step()
    assert placed.supervisor.present(placed.seen) == ["a-1"]
    assert placed.supervisor.waited_for(placed.seen) == []
    assert placed.finish is None
    placed.end("a-1", 0)
    placed.state = "ended"
    placed.step()
    assert placed.finish == Finish("done")


@pytest.mark.parametrize("service_dies", [False, True])
def test_a_job_is_suspended_at_an_iterations_end_and_goes_on(placed, service_dies):
    """It ends once it is paused, all services being there; another attempt resumes it."""
    placed.supervisor.suspend()
    placed.step()
    assert placed.said[-1] == Pause()
    placed.state = PAUSING
    if service_dies:
        placed.end("ps-0", -9)
    placed.step().step()
    assert placed.finish is None
    assert placed.all_run()
    assert Resume() not in placed.said
    placed.state = "paused"
    placed.step()
    assert placed.finish == Finish("suspended")
    again = Cluster(placed.job, placed=True)
    assert placed.supervisor.paused
    again.supervisor.resumed()
    again.state = "paused"
    again.supervisor.place(1, {"a-3": "north"})
    again.until_all_run()
    again.step()
    assert again.said[-1] == Resume()


@pytest.mark.parametrize("state", ["running", "recovering", "ended"])
def test_a_job_that_has_lost_all_its_workers_is_suspended(placed, state):
    """Nobody is there with whom it could come to a pause."""
    placed.supervisor.suspend()
    placed.reason = GONE if state == "ended" else ""
    for name in ("a-1", "a-2"):
        assert placed.finish is None
        placed.lose(name)
        for _ in range(2):
            placed.state = state  # it does not come to a pause
            placed.step()
    assert placed.finish == Finish("suspended")


def test_what_was_not_begun_or_is_paused_is_suspended_at_once():
    """An operator's pause is left to the operator."""
    made = Cluster(submission(), placed=True).step()
    made.supervisor.suspend()
    made.step()
    assert made.finish == Finish("suspended")
    assert not made.supervisor.paused


def test_workers_that_alone_have_the_parameters_write_them_down_to_be_suspended():
    """They are asked to until they have, whatever the job's state, also after the controller's restart.

    Then they may all be gone. Before the manager has known the job, there is nothing to be written.
    """
    job = submission(shards=0)
    placed = Cluster(job, placed=True)
    placed.supervisor.place(1, {"a-1": "north"})
    placed.until_all_run()
    placed.state = "running"
    placed.step()
    placed.supervisor.suspend()
    saved = placed.supervisor.saved
    placed.supervisor = Supervisor(job, placed=True)
    placed.supervisor.restore(**saved)
    for state in ("", "running", "gathering", "recovering", "paused"):
        placed.state = state
        placed.step()
        assert placed.finish is None
        assert placed.said[-1] == Pause(keep=True)
    placed.lose("a-1")
    placed.state, placed.reason, placed.kept = "ended", GONE, True
    placed.step()
    assert placed.finish == Finish("suspended")
    unknown = Cluster(job, placed=True)
    unknown.supervisor.place(1, {"a-2": "north"})
    unknown.until_all_run()
    unknown.supervisor.suspend()
    unknown.step()
    assert unknown.finish == Finish("suspended")


def test_a_group_that_stays_as_it_is_has_no_place_on_a_shared_cluster():
    """The job ends as soon as its manager knows, before it has anything to lose."""
    placed = Cluster(submission(shards=0), placed=True)
    placed.supervisor.place(1, {"a-1": "north"})
    placed.until_all_run()
    placed.state, placed.exchange = "gathering", FIXED_GROUP
    placed.step()
    assert placed.finish.state == "failed"
    assert "a group that stays as it is" in placed.finish.reason


FAULTS = st.sampled_from(("lose", "kill", "error", "leave", "silence", "resize"))


@given(
    shards=st.integers(0, 2),
    fixed_group=st.booleans(),
    workers=st.integers(1, 4),
    faults=st.lists(st.tuples(FAULTS, st.integers(0, 6), st.integers(0, 3)), max_size=12),
)
def test_a_job_runs_again_once_faults_stop(shards, fixed_group, workers, faults):
    """Whatever is lost, killed, silent or about to go, in any order: in the end all processes run."""
    fixed_group = fixed_group and not shards
    job = submission(workers, shards, fixed_group=fixed_group, max_failures=1000)
    made = Cluster(job).until_all_run()
    made.state = "running"
    for fault, which, steps in faults:
        names = [name for name in made.supervisor.names if name in made.seen]
        name = names[which % len(names)]
        if fault == "lose":
            made.lose(name)
        elif fault in ("kill", "error") and made.seen[name].phase == "running":
            made.end(name, -9 if fault == "kill" else 1)
        elif fault == "leave":
            made.change(name, goes_in=0.0)
        elif fault == "silence":
            before = made.seen[name]
            made.change(name, phase="placing", host=None)
            made.step(place=False)
            if made.seen.get(name) == replace(before, phase="placing", host=None):
                made.seen[name] = before
        elif fault == "resize" and not fixed_group:
            made.supervisor.resize(1 + which)
        for _ in range(steps):
            obey_drains(made)
            made.step()
    for name, one in made.seen.items():
        made.seen[name] = replace(one, goes_in=None)
    obey_drains(made)
    made.until_all_run()
    for _ in range(5):
        obey_drains(made)
        made.step()
    assert made.state == "running"
    assert made.finish is None


def obey_drains(cluster):
    """End the workers that were drained, as the manager has them end."""
    drained = {action.name for action in cluster.said if isinstance(action, Drain)}
    for name in drained & set(cluster.seen):
        if cluster.seen[name].phase == "running":
            cluster.end(name, 0)
    cluster.said = [action for action in cluster.said if not isinstance(action, Drain)]
