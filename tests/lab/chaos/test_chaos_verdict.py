"""The verdict of `evenpace lab chaos` on what a small training has written down, and on that with a fault.

The training is real: manager, shards and the workers' script of `evenpace lab chaos`, in threads. One
training without a fault is shared; most faults are planted in a copy of its files, some in what is running.
"""

import contextlib
import json
import re
import shutil
import threading
import time
import zlib
from dataclasses import replace

import numpy as np
import pytest

from idl.plan import permutation
from lab.chaos import checks
from lab.chaos import storm as storms
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.config import ChaosConfig
from lab.chaos.fault_schedule import Fault
from lab.chaos.job_progress import Progress
from lab.chaos.journalling_worker import train
from lab.chaos.reference_training import SPEC
from lab.chaos.storm import Storm
from lab.chaos.supervisor import Ending
from lab.chaos.verdict import CALM, judge
from lab.observer import Observer
from ps.shard import Shard
from rpc.processes import Process
from tests.services import in_threads, manager_service, send_back, serving, shard_service
from worker.session import Session, SessionConfig

JOB = "job-0"
WORKERS, SHARDS = ("w0", "w1"), ("ps-0", "ps-1")
ITERATIONS = 45  # two epochs, of 21 each, and a part of the third
EVERY = 10  # versions between two checkpoints
SENT_BACK, BACK = 25, 20  # in this iteration the job begins another attempt, at that one


class Run:
    """A training of two workers and two shards, as it looks to the verdict.

    Args:
        folder: That it wrote into.
        history: The manager's records.
        kinds: Of faults, those that were to come.
        settings: Others.
    """

    def __init__(self, folder, history, kinds=("kill",), **settings):
        self.folder = folder
        self.history = history
        self.problems = []
        settings = ChaosConfig(1, 0, kinds, len(WORKERS), len(SHARDS), checkpoint_every=EVERY, **settings)
        self.cluster = ChaosCluster(settings, folder)
        roles = {
            **dict.fromkeys(self.cluster.workers, "worker"),
            **dict.fromkeys(SHARDS, "shard"),
            "manager": "manager",
        }
        self.supervisor = self.cluster.supervisor
        self.supervisor.processes = {
            name: Process(name, ("sleep", "600"), folder / f"{name}.log", role)
            for name, role in roles.items()
        }
        self.supervisor.wanted = set(roles)
        for process in self.supervisor.processes.values():
            process.starts = 1
        self.storm = Storm(self.cluster, iter(()), folder / "faults.jsonl")

    def judged(self):
        """The verdict."""
        jobs = self.cluster.jobs
        progress = {job: Progress(self.cluster, job) for job in jobs}
        history = dict.fromkeys(jobs, self.history)
        return judge(self.cluster, self.storm, progress, history, self.problems)

    def copied(self, folder, kinds=("kill",), **settings):
        """A copy after the same faults, to plant another in; other kinds may have been to come."""
        shutil.copytree(self.folder, folder, ignore=shutil.ignore_patterns("state"), dirs_exist_ok=True)
        copy = Run(folder, json.loads(json.dumps(self.history)), kinds, **settings)
        copy.storm.over = list(self.storm.over)
        return copy

    def under_faults(self, *faults, ended=False):
        """Have faults befall the processes, which do nothing but sleep, until all are over.

        `ended` is whether the time is up once the first have begun.
        """
        over = self.storm.over
        self.storm = Storm(self.cluster, iter(faults), self.folder / "faults.jsonl")
        self.storm.over = over
        self.supervisor.processes["w0"].start()
        try:
            if ended:
                self.storm.tick()
                self.storm.end()
            while not self.storm.done:
                self.supervisor.poll()
                self.storm.tick()
                time.sleep(0.01)
        finally:
            self.supervisor.stop("worker")
        return self

    @contextlib.contextmanager
    def lines(self, *path):
        """The lines of a ledger or a journal, to be changed."""
        (file,) = self.folder.joinpath(*path[:-1]).glob(path[-1])
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        yield lines
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def ledger(self, shard="ps-0"):
        """A shard's."""
        return self.lines("ledgers", shard, "*")

    def journal(self, worker="w0"):
        """A worker's."""
        return self.lines("journals", f"{worker}-0.jsonl")

    @contextlib.contextmanager
    def parameters(self, worker="w0"):
        """A worker's final parameters and their version, to be changed."""
        path = self.folder / "parameters" / f"{worker}.npz"
        with np.load(path) as saved:
            values = dict(saved)
        yield values
        np.savez(path, **values)


def kill(number=0, target="w0", at=0.0, kind="kill"):
    """A fault, by default one that a process cannot escape."""
    return Fault(number, at, kind, (target,), 0.0)


def trained(folder, iterations, at=lambda session, manager: None, *, schedule=False, **settings):
    """Train; `at` is called by each worker before an iteration is finished, `settings` are the verdict's."""
    for name in ("ledgers", "journals", "parameters"):
        (folder / name).mkdir(parents=True)
    (folder / "stop").write_text(str(iterations))

    def work(name):
        """Do one worker's part of the run."""
        with contextlib.closing(Session(SessionConfig(manager, tuple(shards), JOB, name))) as session:
            finish = session.finish_iteration

            def finish_iteration():
                at(session, manager)
                finish()

            session.finish_iteration = finish_iteration
            journal, out = folder / "journals" / f"{name}-0.jsonl", folder / "parameters" / f"{name}.npz"
            train(session, journal, folder / "stop", out, schedule=schedule)

    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(
            serving(manager_service(len(WORKERS), silence=600.0, reconnect_grace=600.0))
        )
        shards = []
        for name in SHARDS:
            state, ledger = folder / "state" / name, folder / "ledgers" / name
            service = shard_service(state=state, ledger=ledger, checkpoint_every=EVERY)
            shards.append(stack.enter_context(serving(service)))
        in_threads(*(lambda name=name: work(name) for name in WORKERS))
        with contextlib.closing(Observer(manager, (), JOB)) as observer:
            assert observer.poll()
            history = [record.plain() for record in observer.iterations]
    return Run(folder, history, **settings)


@pytest.fixture(scope="module")
def faultless(tmp_path_factory):
    """A training that goes back to a checkpoint once, under a kill of a process that has no part in it."""
    together = threading.Barrier(len(WORKERS))  # lest the other worker is first to say where it goes back to

    def at(session, manager):
        if (session.assignment.attempt, session.assignment.iteration) == (0, SENT_BACK):
            together.wait(240)
            if session.config.worker == "w0":
                send_back(session, manager, BACK)
            together.wait(240)

    return trained(tmp_path_factory.mktemp("faultless"), ITERATIONS, at).under_faults(kill())


@pytest.fixture
def run(faultless, tmp_path):
    """A copy of that training, to plant a fault in."""
    return faultless.copied(tmp_path)


def said_of(run, *patterns):
    """Check that a verdict has these among its violations."""
    found = run.judged().violations
    for pattern in patterns:
        assert any(re.match(pattern, line) for line in found), found


@pytest.mark.ci
def test_a_training_without_a_fault_has_no_violation(faultless):
    """The verdict counts the rewinds: two shards went back for the same iterations."""
    outcome = faultless.judged()
    assert outcome.violations == []
    found = outcome.jobs[JOB]
    assert (found.iterations, found.rewinds, found.missing) == (ITERATIONS, 2, 0)
    assert found.redone == SENT_BACK - BACK
    assert found.compared == 2 * (1 + ITERATIONS // EVERY + 1)  # each has version 20 in both attempts
    assert 0 < found.error < 1e-9
    assert outcome.counts == {"kill": (1, 1, 0)}


# -- planted in what is running


@pytest.mark.ci
@pytest.mark.parametrize("factor", [0, 2])
def test_a_shard_that_drops_or_doubles_a_gradient_is_seen(tmp_path, monkeypatch, factor):
    """The shard's ledger is in order; the parameters of later versions are not those of one process."""
    add = Shard.add

    def wrong(shard, part, piece):
        add(shard, part, factor * piece if (shard.version, part.worker) == (7, "w1") else piece)

    monkeypatch.setattr(Shard, "add", wrong)
    run = trained(tmp_path, 12).under_faults(kill())
    said_of(
        run,
        "w0's parameters of version 10 in attempt 0: differs by",
        "w1's parameters of version 10 in attempt 0: differs by",
        "w0's final parameters: differs by",
        "w1's final parameters: differs by",
    )
    assert len(run.judged().violations) == 4


# -- planted in what the shards wrote


def step_of(lines, iteration):
    """Return the index of the ledger's line with the step of an iteration that holds."""
    return max(place for place, line in enumerate(lines) if line.get("iteration") == iteration)


def step_in(lines, iteration=30):
    """The ledger's line with the step of an iteration that holds."""
    return lines[step_of(lines, iteration)]


def rewind_in(lines):
    """The line that says from where the second attempt goes on."""
    return next(line for line in lines if "rewound" in line)


def kept_on(lines):
    """The shard goes on in the second attempt from where it was, and not from the checkpoint."""
    rewind_in(lines)["rewound"] = SENT_BACK
    lines[:] = [
        line for line in lines if not (line["attempt"] == 1 and line.get("iteration", SENT_BACK) < SENT_BACK)
    ]


def first_slice_lost(lines):
    """A step is without its first slice."""
    step_in(lines)["slices"].pop(0)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("plant", "shard", "said"),
    [
        (
            lambda lines: lines.remove(step_in(lines)),
            "ps-0",
            "ps-0: step 31 in attempt 1, where step 30 in attempt 1 was due",
        ),
        (
            lambda lines: lines.insert(step_of(lines, 30), step_in(lines)),
            "ps-0",
            "ps-0: step 30 in attempt 1, where step 31 in attempt 1 was due",
        ),
        (
            lambda lines: step_in(lines).update(attempt=0),
            "ps-0",
            "ps-0: step 30 in attempt 0, where step 30 in attempt 1 was due",
        ),
        (
            lambda lines: rewind_in(lines).update(rewound=BACK + 1),
            "ps-0",
            "ps-0: updates from 21 to 25 were taken back, to no checkpoint",
        ),
        (
            lambda lines: lines.insert(step_of(lines, 39) + 1, {"attempt": 1, "rewound": 30}),
            "ps-0",
            "ps-0: rewound to version 30 in attempt 1, from version 40 in attempt 1",
        ),
        (
            lambda lines: lines.remove(step_in(lines, ITERATIONS - 1)),
            "ps-0",
            "ps-0: 44 steps at the end, not 45",
        ),
        (kept_on, "ps-1", "iteration 20: ps-0 has the step of attempt 1, ps-1 that of attempt 0"),
        (first_slice_lost, "ps-0", r"ps-0: iteration 30: w\d at \d+, where \d+ was due"),
        (first_slice_lost, "ps-1", r"ps-1: epoch 1: \d+ samples not used exactly once"),
        (
            lambda lines: step_in(lines)["slices"].append(step_in(lines)["slices"][0]),
            "ps-1",
            r"ps-1: epoch 1: \d+ samples not used exactly once",
        ),
    ],
)
def test_a_fault_in_a_ledger_is_seen(run, plant, shard, said):
    """Steps and slices that are missing, come twice or are out of place, in any shard's."""
    with run.ledger(shard) as lines:
        plant(lines)
    said_of(run, said)


# -- planted in what the workers wrote


def computed_in(lines, iteration=30):
    """The line that says what was computed for an iteration."""
    return next(line for line in lines if line[0] == "computed" and line[2] == iteration)


def computes(lines, start, count):
    """Other samples of the epoch were computed for an iteration, and the journal says which they are."""
    line = computed_in(lines)
    indices = permutation(SPEC, SPEC.batch(line[2])[0])[start : start + count]
    line[3:6] = [start, count, zlib.crc32(indices.astype(np.int64).tobytes())]


def of_the_batch_before(lines):
    """Samples of another batch."""
    _, _, _, start, count, *_ = computed_in(lines)
    computes(lines, start - SPEC.total_batch_size, count)


def reached_in(lines, attempt, version):
    """Return the index of the journal's line about the parameters of a version."""
    return next(i for i, line in enumerate(lines) if line[:3] == ["reached", attempt, version])


def add_to(values, place, amount):
    """Change a number."""
    values[place] += amount


def back_in_time(lines):
    """An older version comes after a newer one."""
    first, second = reached_in(lines, 1, 31), reached_in(lines, 1, 32)
    lines[first], lines[second] = lines[second], lines[first]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (of_the_batch_before, r"w0: iteration 30: wrong samples for \d+ to \d+"),
        (lambda lines: add_to(computed_in(lines), 5, 1), r"w0: iteration 30: wrong samples for \d+ to \d+"),
        (
            lambda lines: lines.remove(computed_in(lines)),
            r"ps-0: iteration 30 has \d+ to \d+ from w0, which computed \[\]",
        ),
        (back_in_time, r"w0: version 31 in attempt 1 after \(1, 32\)"),
        (
            lambda lines: add_to(lines[reached_in(lines, 1, ITERATIONS)], 2, 1),
            "w0 has version 46 of attempt 1, in which ps-1 had 45 at most",
        ),
        (
            lambda lines: add_to(lines[reached_in(lines, 1, 30)][3], 0, 1e-6),
            "w0's parameters of version 30 in attempt 1: differs by",
        ),
    ],
)
def test_a_fault_in_a_journal_is_seen(run, plant, said):
    """Samples that were not those of the slice, and parameters that no shard had, or one process has not."""
    with run.journal() as lines:
        plant(lines)
    said_of(run, said)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (lambda values: add_to(values, "version", -1), "ended with version 44, but the job has 45"),
        (lambda values: add_to(values["parameters"], 100, 1e-6), "'s final parameters: differs by "),
        (lambda values: add_to(values["parameters"], 100, np.nan), "'s final parameters: differs by nan"),
    ],
)
def test_final_parameters_that_are_not_those_of_one_process_are_seen(run, plant, said):
    """Final parameters are compared with those of one process."""
    with run.parameters("w1") as values:
        plant(values)
    (violation,) = run.judged().violations
    assert violation.startswith("w1")
    assert said in violation


def test_a_worker_that_does_not_come_to_the_end_is_seen(run):
    """Though the other does."""
    (run.folder / "parameters" / "w1.npz").unlink()
    assert run.judged().violations == ["w1: did not come to the end with its parameters"]


@pytest.fixture(params=["deterministic", "exact"])
def twin(faultless, tmp_path, request):
    """The same, where another run without faults has come to the same bits."""
    run = faultless.copied(tmp_path, **{request.param: True})
    shutil.copytree(run.folder / "parameters", run.folder / CALM / "parameters")
    return run


def test_another_last_bit_is_seen(twin):
    """A change of one last bit is seen, far below the tolerance against one process."""
    outcome = twin.judged()
    assert outcome.violations == []
    assert outcome.jobs[JOB].same_bits
    with twin.parameters("w1") as values:
        values["parameters"][100] = np.nextafter(values["parameters"][100], 1.0)
    outcome = twin.judged()
    assert outcome.violations == [
        f"w1: 1 final parameters have other bits than {other}'s without faults" for other in WORKERS
    ]
    assert outcome.jobs[JOB].same_bits is False


def test_two_zeros_are_not_the_same_bits():
    """Though they are equal."""
    zeros = {"w0": (3, np.array([0.0]))}, {"w0": (3, np.array([-0.0]))}
    assert list(checks.bits_equal(*zeros)) == [
        "w0: 1 final parameters have other bits than w0's without faults"
    ]


def test_workers_that_take_steps_themselves_must_end_with_the_same_bits():
    """One that differs in the last bit of one parameter is told from the others."""
    finals = {name: (3, np.ones(3)) for name in ("w0", "w1", "w2")}
    assert list(checks.finals_equal(finals)) == []
    finals["w1"][1][2] = np.nextafter(1.0, 2.0)
    assert list(checks.finals_equal(finals)) == ["workers ended with other bits than others: w0, w2 and w1"]


# -- planted in the manager's history


@pytest.mark.ci
@pytest.mark.parametrize(
    ("plant", "said"),
    [
        (
            lambda history: add_to(history[30]["workers"]["w0"], "batch_size", -1),
            "manager: iteration 30 has 95 samples of 96, not 96",
        ),
        (lambda history: history.insert(30, history[30]), "manager: iteration 30 of 45 after iteration 30"),
        (
            lambda history: history.append({**history[-1], "iteration": ITERATIONS, "total": 96}),
            "manager: iteration 45 of 45 after iteration 44",
        ),
        (lambda history: history.pop(30), "manager: no record from 30 to 30, all in attempt 1"),
        (list.clear, "manager: no record of any of 45 iterations"),
    ],
)
def test_a_fault_in_the_managers_history_is_seen(run, plant, said):
    """Batches that are not whole; iterations that are missing, come twice or are out of order."""
    plant(run.history)
    said_of(run, said)


# -- ends of processes


def ended(name="w0", code=1, at=100.0, log="'w0' is not a member of job default"):
    """The end of a process that nobody had killed."""
    return Ending(name, code, at, log)


def silenced(run, seconds, target="w0", until=100.0):
    """Let a fault have lasted for so long."""
    (over,) = run.storm.over
    run.storm.over.append(replace(over, target=target, began=until - seconds, ended=until))


@pytest.mark.parametrize("target", ["w0", "manager", "w0>manager"])
def test_a_worker_may_be_taken_out_after_a_long_silence(run, target):
    """A worker's end after a long silence is no violation, nor that it lacks final parameters."""
    silenced(run, 31, target)
    run.supervisor.endings.append(ended())
    (run.folder / "parameters" / "w0.npz").unlink()
    outcome = run.judged()
    assert outcome.violations == []
    assert outcome.excused == {"w0": 31.0}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("seconds", "target", "ending"),
    [
        (29, "w0", ended()),
        (31, "w1", ended()),
        (31, "w0", ended(at=200.0)),
        (31, "w0", ended(code=2)),
        (31, "w0", ended(log="MemoryError")),
        (31, "ps-0", ended("ps-0")),
    ],
)
def test_a_process_that_ends_by_itself_is_seen(run, seconds, target, ending):
    """The violation has its status and its log, unless it is a worker that was taken out for its silence."""
    silenced(run, seconds, target)
    run.supervisor.endings.append(ending)
    outcome = run.judged()
    assert outcome.violations == [f"{ending.name} ended with status {ending.code}:\n{ending.log}"]
    assert outcome.excused == {}


# -- which faults fired


def test_a_fault_that_does_not_fire_is_told(faultless, tmp_path, monkeypatch):
    """The clock of a process that does not run under libfaketime stays as it is."""
    monkeypatch.setattr(storms, "_EVIDENCE_SECONDS", 0.0)
    run = faultless.copied(tmp_path, ("kill", "clock"))
    run.under_faults(replace(kill(1, kind="clock"), amount=3600.0))
    outcome = run.judged()
    assert outcome.counts == {"kill": (1, 1, 0), "clock": (1, 0, 0)}
    assert outcome.violations == [
        "fault 1, clock of w0, did not fire",
        "no clock fired: of 1 that came, 0 found nothing to befall",
    ]


def test_a_kind_that_never_fires_is_told(faultless, tmp_path, monkeypatch):
    """A kind may have found nothing to befall, or may not have come at all."""
    monkeypatch.setattr(storms, "_PATIENCE_SECONDS", 0.0)
    run = faultless.copied(tmp_path, ("kill", "cut", "stall"))
    with run.cluster.proxy as proxy:
        proxy.add("w0>manager", run.cluster.manager)
        run.under_faults(kill(1, "w0>manager", kind="cut"))
    outcome = run.judged()
    assert outcome.counts == {"kill": (1, 1, 0), "cut": (1, 0, 1), "stall": (0, 0, 0)}
    assert outcome.violations == [
        "no cut fired: of 1 that came, 1 found nothing to befall",
        "no stall fired: of 0 that came, 0 found nothing to befall",
    ]
