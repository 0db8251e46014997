"""A job whose group the manager forms, under every fault at random, with workers that behave as real ones.

A worker's state is the list of the steps that its parameters have had. The reductions are the judge: all who
take part have the same state, and their slices tile the batch.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.job.restoration import restore_job
from batchsize_manager.job.state import JobState
from batchsize_manager.storage.json_values import from_json, to_json
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, NotMemberError, UnavailableError
from idl.exchange import FORMED_GROUP
from idl.plan import JobSpec
from idl.records import Report
from tests.batchsize_manager.job.driver import Choosy
from tests.state_machines import driven

MEMBERS = 5
SAMPLES = 90
PATIENCE = 30.0  # seconds that a worker waits for its peers before it asks for another group
SLACK = 5.0  # seconds in which a worker may act without a report
RECOVERS = 5000.0  # seconds in which training goes on again, whatever has happened


@dataclass
class Peers:
    """A group as its members see it, each of which has been told its seat alone."""

    size: int
    store: str
    source: int | None
    iteration: int
    keep: bool
    formed: set = field(default_factory=set)  # ranks that have the state with which it begins
    workers: dict = field(default_factory=dict)  # by rank; those that have come
    states: dict = field(default_factory=dict)  # by rank; what they came with
    gone: bool = False  # a member has left it or died: what is not complete never will be
    reductions: dict = field(default_factory=dict)  # by iteration: rank to (part, state)

    def is_complete(self, iteration):
        """Whether all have brought their part of an iteration."""
        return len(self.reductions.get(iteration, ())) == self.size


class Worker:
    """A worker: what it has, what it has to do, and how far it is."""

    def __init__(self, name, incarnation):
        self.name, self.incarnation = name, incarnation
        self.state = ()  # steps, each (epoch, start, total)
        self.formed = None
        self.attempt = 0
        self.must = None  # the attempt that it has heard of
        self.arrives = False  # its `rewind` waits for an answer
        self.waiting = True  # its last call waits for an answer
        self.joined = False  # its `join` has been answered, since when it sends heartbeats
        self.peers = self.rank = None
        self.lacks = False
        self.todo, self.finished, self.known, self.reported = [], [], -1, -1
        self.frozen = self.hung = False
        self.since = 0.0  # when it began to wait for its peers
        self.acted = 0.0  # when it did the last thing
        self.pushed = False
        self.cut = False  # its connection broke since it called last
        self.kept = False  # it has written its state down, and has been given nothing to do since


class AnyChange(RuleBasedStateMachine):
    """Each rule is one thing that happens; workers do one thing at a time."""

    @initialize(
        workers=st.integers(1, 3),
        lookahead=st.sampled_from([0, 0, 1, 2]),
        total=st.integers(10, 40),
        maximum=st.sampled_from([1000, 20]),
        micro_batch=st.sampled_from([None, None, 2, 3]),
        release=st.booleans(),
    )
    def begin(self, workers, lookahead, total, maximum, micro_batch, release):
        """Begin a job with the workers that it waits for."""
        self.spec = JobSpec(SAMPLES, total, micro_batch=micro_batch)
        whole = self.spec.unit
        self.maximum = max(maximum // whole, -(-len(self.spec.cuts(total)) // workers)) * whole
        self.config = JobConfig(
            workers, lookahead, reconnect_grace=1.0, report_timeout=60.0, keep=1e6, release=release
        )
        self.now, self.count, self.slow = 0.0, 0, set()
        self.begin_job()

    def begin_job(self):
        """Begin the job, or again."""
        self.job = Job(self.spec, self.config, Choosy(self.slow))
        self.workers, self.peers, self.kept, self.paused = {}, {}, [], False
        self.file = None  # the state that was written down last
        self.must_keep = self.is_disk_full = False
        self.highest = 0
        self.written = []  # states with their records, since the last answer that waited for a write, or all
        self.sure = 0  # the index in it of what was written before that answer
        self.unknown = set()  # incarnations that a manager which has lost writes may not know
        self.lost_in = -1  # the last attempt of such a manager's predecessor
        self.losses = 0
        self.versions = {}  # by incarnation, of dead ones, too: its last group formed, and steps
        self.released = set()  # incarnations that were drained, and have nothing more to do
        for _ in range(self.config.workers):
            self.join()

    # -- what happens

    @precondition(lambda self: len(self.workers) < MEMBERS)
    @rule()
    def join(self):
        """A worker comes."""
        self.count += 1
        self.admit(Worker(f"w{self.count}", f"i{self.count}"))

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0), steps=st.integers(1, 4))
    def act(self, pick, steps):
        """A worker goes on."""
        worker = self.picked(pick)
        for _ in range(steps):
            self.go_on(worker)

    @rule(steps=st.integers(1, 8))
    def all_act(self, steps):
        """All go on, one after the other."""
        for _ in range(steps):
            for worker in list(self.workers.values()):
                self.go_on(worker)

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def freeze_or_thaw(self, pick):
        """A worker stops, or goes on as if nothing had been."""
        worker = self.picked(pick)
        worker.frozen = not worker.frozen

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def hang(self, pick):
        """A worker goes on sending heartbeats, and does nothing else any more."""
        self.picked(pick).hung = True

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def die(self, pick):
        """A worker is killed."""
        worker = self.workers.pop(self.picked(pick).name)
        self.quit(worker)
        self.job.disconnect(worker.name, worker.incarnation, self.now)
        self.settle()

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def restart(self, pick):
        """A worker is killed, and started again at once under the same name."""
        old = self.picked(pick)
        self.die(pick)
        self.count += 1
        self.admit(Worker(old.name, f"i{self.count}"))

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def leave(self, pick):
        """A worker goes for good."""
        worker = self.workers.pop(self.picked(pick).name)
        self.quit(worker)
        self.call(worker, lambda: self.job.leave(worker.name, worker.incarnation, self.now))

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def miss(self, pick):
        """A worker's reduction fails, though it may be complete at others."""
        worker = self.picked(pick)
        if worker.peers is not None and worker.todo and worker.pushed and not worker.frozen:
            self.recover(worker)

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def reconnect(self, pick):
        """A connection breaks, maybe for longer than the grace lasts, and the worker calls again."""
        worker = self.picked(pick)
        self.job.disconnect(worker.name, worker.incarnation, self.now)
        self.now += 1.5 * (pick % 2)
        self.job.tick(self.now)
        self.settle()
        worker.cut = True
        if self.workers.get(worker.name) is worker:
            self.send_heartbeat(worker)

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0, 70.0]))
    def tick(self, seconds):
        """Time passes; who is not frozen sends heartbeats meanwhile."""
        while seconds > 0:
            self.now += min(seconds, 2.0)
            seconds -= 2.0
            for worker in list(self.workers.values()):
                self.send_heartbeat(worker)
            self.job.tick(self.now)
            self.settle()

    @precondition(lambda self: self.job.members.started)
    @rule(lost=st.integers(0, 2))
    def manager_crashes(self, lost):
        """The manager is started again from what it kept; the last records may be missing."""
        self.restore(self.job.saved, self.kept[: len(self.kept) - lost])

    @precondition(lambda self: self.job.members.started)
    @rule(pick=st.integers(0))
    def manager_is_killed(self, pick):
        """The manager is started again without its last writes, for which no answer had to wait."""
        left = self.written[self.sure :]
        self.highest = 0  # attempts of which heartbeats alone have told are not on disk
        self.restore(*left[pick % len(left)])

    @precondition(lambda self: self.job.members.started)
    @rule(pick=st.integers(0))
    def manager_loses_writes(self, pick):
        """The manager is started again from an older state, though workers act upon what came later."""
        for worker in [worker for worker in self.workers.values() if worker.frozen]:
            self.workers.pop(worker.name)
            self.quit(worker)
        self.lost_in = max(self.lost_in, self.job.attempts.number)
        self.losses += 1
        self.highest = 0
        self.unknown = {worker.incarnation for worker in self.workers.values()}
        self.restore(*self.written[pick % len(self.written)])
        for worker in list(self.workers.values()):
            self.send_heartbeat(worker)

    def restore(self, state, records):
        """Make the job again from a state and records."""
        self.kept = list(records)
        self.written, self.sure = [(state, self.kept)], 0
        state = from_json(JobState, to_json(state))
        self.job = restore_job(state, self.config, Choosy(self.slow), records=self.kept, now=self.now)
        self.paused, self.must_keep = self.job.operations.paused, False
        for worker in self.workers.values():
            worker.cut = True
        self.settle()

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def slow_down(self, pick):
        """The policy finds the job faster without a worker, or no longer."""
        self.slow ^= {self.picked(pick).name}

    @rule(size=st.integers(10, 60))
    def change_batch_size(self, size):
        """Batches are to have another size; it may be refused."""
        try:
            self.job.operations.change_batch_size(size, self.now)
        except InvalidRequestError:
            members, cuts = self.job.members, self.spec.cuts(size)
            assert cuts.padded > self.maximum * len(members.staying) or len(members) > len(cuts)
        self.settle()

    @precondition(lambda self: self.workers)
    @rule(pick=st.integers(0))
    def drain(self, pick):
        """A worker is to go once the others can go on without it."""
        worker = self.picked(pick)
        if worker.name in self.job.members:
            try:
                self.job.operations.drain(worker.name, self.now)
            except InvalidRequestError as error:
                assert "without it" in str(error)  # noqa: PT017 - whether it is refused is the planner's affair
        self.settle()

    @rule()
    def pause_or_resume(self):
        """Nothing more is planned, or what is next."""
        self.paused, self.must_keep = not self.paused, False
        _ = self.job.operations.pause(self.now) if self.paused else self.job.operations.resume(self.now)
        self.settle()

    @precondition(lambda self: self.job.members.started)
    @rule(steps=st.integers(0, 8))
    def keep(self, steps):
        """Nothing more is planned, but that a worker writes the state down."""
        self.job.operations.keep(self.now)
        self.paused = self.must_keep = True
        self.settle()
        self.all_act(steps)

    @rule()
    def fill_or_clear_disk(self):
        """Nothing can be written down, or again."""
        self.is_disk_full = not self.is_disk_full

    # -- how workers behave

    def go_on(self, worker):
        """Do the next thing."""
        self.now += 0.05
        if worker.frozen or worker.hung or self.workers.get(worker.name) is not worker:
            return
        worker.acted = self.now
        if worker.cut:  # the call that waited is made again
            worker.cut = False
            if worker.arrives:
                worker.must = worker.must or worker.attempt
            elif worker.waiting:
                self.call(worker, lambda: self.beat(worker) if worker.joined else self.enter(worker))
                if worker.cut:
                    return
        if worker.must is not None:
            self.call(worker, lambda: self.rewind(worker))
            return
        if worker.waiting:
            self.call(worker, lambda: self.ask(worker))
        elif worker.finished:
            worker.waiting = True
            self.tell(worker, worker.finished.pop(0))
        if worker.must is None and worker.peers is not None and worker.name in self.workers:
            if worker.peers.workers.get(worker.rank) is not worker or worker.formed != worker.attempt:
                self.form(worker)
            elif worker.peers.keep:
                self.write_down(worker)
            elif worker.todo:
                self.reduce(worker)

    def rewind(self, worker):
        """Go to the rendezvous of the attempt that it has heard of."""
        self.quit(worker)
        attempt, worker.must = worker.must or worker.attempt, None  # the same if it repeats the call
        place = None
        if worker.state:
            epoch, start, total = worker.state[-1]
            place = epoch, start + total
        worker.todo, worker.finished, worker.known = [], [], -1
        worker.attempt, worker.arrives, worker.waiting, worker.reported = attempt, True, True, -1
        self.job.rewind(
            *(worker.name, worker.incarnation, attempt, len(worker.state), self.now, place),
            store=f"{worker.incarnation}:29500",
            formed=worker.formed,
            kept=worker.kept,
        )
        self.ask(worker)

    def recover(self, worker):
        """Ask for another group."""
        self.quit(worker)

        def call():
            worker.must = self.job.recover(worker.name, worker.incarnation, worker.attempt, self.now)

        self.call(worker, call)

    def form(self, worker):
        """Come to the group; once all have, take the state of the source where it lacks it."""
        peers = worker.peers
        if worker.rank not in peers.workers:
            peers.workers[worker.rank] = worker
            peers.states[worker.rank] = worker.state
        if len(peers.workers) == peers.size and not (peers.gone and worker.lacks):
            if worker.lacks:
                worker.state = peers.states[peers.source]
            elif peers.source is not None:
                assert worker.state == peers.states[peers.source]
            assert len(worker.state) == peers.iteration
            worker.formed, worker.since = worker.attempt, self.now
            peers.formed.add(worker.rank)
        elif peers.gone or self.now - worker.since > PATIENCE:
            self.recover(worker)

    def write_down(self, worker):
        """Write the state down where it has rank 0, once all have compared theirs, and go on."""
        peers = worker.peers
        if len(peers.formed) == peers.size:
            if worker.rank == 0 and not self.is_disk_full:
                self.file, worker.kept = worker.state, True
            self.recover(worker)
        elif peers.gone or self.now - worker.since > PATIENCE:
            self.recover(worker)

    def reduce(self, worker):
        """Bring its part; once all have, take the step and report."""
        peers, part = worker.peers, worker.todo[0]
        reduction = peers.reductions.setdefault(part.iteration, {})
        assert part.iteration == len(worker.state)
        if not worker.pushed and not peers.gone:
            reduction[worker.rank] = part, worker.state
            worker.pushed, worker.since = True, self.now
        if not peers.is_complete(part.iteration):
            if peers.gone or self.now - worker.since > PATIENCE:
                self.recover(worker)
            return
        parts = sorted((p for p, _ in reduction.values()), key=lambda p: (p.start, p.count))
        position, cuts = part.batch_start, self.spec.cuts(part.total)
        for each in parts:
            cuts.index(position - part.batch_start)
            assert (each.start, each.epoch, each.total) == (position, part.epoch, part.total)
            position += each.count
        assert position == part.batch_start + part.total
        assert {state for _, state in reduction.values()} == {worker.state}
        worker.state += ((part.epoch, part.batch_start, part.total),)
        worker.pushed = False
        worker.finished.append(worker.todo.pop(0))
        if not self.config.lookahead:
            worker.waiting = True
            self.tell(worker, worker.finished.pop(0))

    def tell(self, worker, part):
        """Report a part, and take the answer if there is one."""
        report = Report(part.iteration, 0.01 * part.count + 0.01, attempt=part.attempt, start=part.start)

        def call():
            self.job.report(worker.name, worker.incarnation, report, self.now)
            worker.reported = part.iteration
            self.ask(worker)

        self.call(worker, call)

    def send_heartbeat(self, worker):
        """Send a heartbeat, unless it is frozen, or waits for the answer to `join`."""
        if worker.joined and not worker.frozen:
            self.call(worker, lambda: self.beat(worker))

    def beat(self, worker):
        """Send a heartbeat, and take the answer."""
        must = self.job.heartbeat(worker.name, worker.incarnation, worker.attempt, self.now)
        if must is not None and must > worker.attempt:
            worker.must = must

    def ask(self, worker):
        """Take what the service would answer."""
        known = worker.known if self.config.lookahead else -1
        answer = self.job.answer(
            *(worker.name, worker.incarnation),
            reported=worker.reported,
            known=known,
            rewinds=worker.arrives,
        )
        if answer is None:
            return
        if answer.after_write:
            self.settle()
            if self.workers.get(worker.name) is not worker:
                return  # the job was over, and has begun again
            self.sure = len(self.written) - 1
        worker.waiting, worker.joined = False, True
        if answer.released is not None:
            if not worker.todo and not worker.finished:
                del self.workers[worker.name]
                self.quit(worker)
        elif answer.recover is not None:
            worker.must = answer.recover
        elif answer.assignment is not None:
            worker.todo += [answer.assignment, *(answer.ahead or ())]
            worker.known = worker.todo[-1].iteration
            assert {part.attempt for part in worker.todo} == {worker.attempt}
            if worker.arrives:
                worker.arrives = worker.kept = False
                self.sit(worker, answer.seat)

    def sit(self, worker, seat):
        """Check its seat against those of the others."""
        worker.rank, worker.lacks, worker.since, worker.pushed = seat.rank, seat.lacks, self.now, False
        facts = seat.size, seat.store, seat.source, worker.todo[0].iteration, seat.keep
        peers = worker.peers = self.peers.setdefault((self.losses, worker.attempt), Peers(*facts))
        assert facts == (peers.size, peers.store, peers.source, peers.iteration, peers.keep)
        assert 0 <= seat.rank < seat.size
        assert seat.rank not in peers.workers
        assert (seat.rank == 0) == (seat.store == f"{worker.incarnation}:29500")
        assert seat.rank != seat.source or not seat.lacks
        assert not seat.lacks or seat.source is not None

    def quit(self, worker):
        """Leave the group, which the others notice."""
        if worker.peers is not None:
            worker.peers.gone = True
            worker.peers = None
            worker.pushed = False

    # -- helpers

    def picked(self, pick):
        """One of the live workers."""
        return list(self.workers.values())[pick % len(self.workers)]

    def admit(self, worker):
        """Let a worker join, which may have to wait until its name is free."""
        for _ in range(20):
            try:
                self.enter(worker)
                self.workers[worker.name] = worker
                break
            except UnavailableError:
                self.tick(2.0)
            except InvalidRequestError as error:
                assert "minimum batch sizes" in str(error)  # noqa: PT017 - batches are small then
                break
        self.settle()

    def enter(self, worker, *, again=False):
        """Join, or repeat that."""
        me, bounds = (worker.name, worker.incarnation), Bounds(maximum=self.maximum)
        self.job.join(*me, bounds, self.now, exchange=FORMED_GROUP, beats=True, again=again)

    def call(self, worker, call):
        """Make a call for a worker; who is no member any more ends."""
        try:
            try:
                call()
            except NotMemberError:
                if not self.has_joined_again(worker):
                    raise
                call()
        except NotMemberError:
            self.workers = {name: w for name, w in self.workers.items() if w is not worker}
            self.quit(worker)
        except UnavailableError:  # another has had its name in what is left of the manager's state
            worker.cut = True
        except InvalidRequestError as error:
            assert "minimum batch sizes" in str(error)  # noqa: PT017 - it repeats its call to join
            self.workers = {name: w for name, w in self.workers.items() if w is not worker}
            self.quit(worker)
        self.settle()

    def has_joined_again(self, worker):
        """Let a worker be a member again of a manager that does not know it; return whether it is."""
        if worker.incarnation not in self.unknown:
            return False
        self.unknown.remove(worker.incarnation)
        if self.job.members.is_released(worker.name, worker.incarnation):
            return False
        try:
            self.enter(worker, again=True)
        except (NotMemberError, UnavailableError, InvalidRequestError):
            return False  # it was taken out meanwhile, another has its name, or there is no room
        return True

    def settle(self):
        """Keep what the store would; a job that is over begins again."""
        effects = self.job.take_effects()
        if effects.rewound is not None:
            self.kept = [record for record in self.kept if record.iteration < effects.rewound]
        self.kept += effects.completed
        if self.job.members.started:
            self.written.append((self.job.saved, list(self.kept)))
        if effects.over is None:
            self.check_released()
            return
        having = [w for w in self.workers.values() if w.formed is not None]
        if effects.over.failed:
            assert "no worker has its state" in effects.over.why, effects.over.why
            members = self.job.members.by_name
            assert not any(w.name in members and members[w.name].incarnation == w.incarnation for w in having)
        if self.losses == 0:
            late = self.now - self.config.report_timeout + SLACK
            assert all(w.frozen or w.hung or w.acted <= late for w in having)
        for worker in self.workers.values():
            self.quit(worker)
        self.begin_job()

    def check_released(self):
        """Check that whoever is drained leaves its state to a member that goes on."""
        formed = [w for w in self.workers.values() if w.formed is not None and w.state and not w.frozen]
        self.versions |= {worker.incarnation: (worker.formed, len(worker.state)) for worker in formed}
        members = self.job.members
        staying = {member.incarnation for member in members.by_name.values() if member.last is None}
        for worker in formed:
            member, incarnation = members.get(worker.name, worker.incarnation), worker.incarnation
            goes = member is not None and member.is_drained and member.last is not None
            if not goes and not members.is_released(worker.name, incarnation):
                continue
            if incarnation not in self.released and not self.losses:
                left = [self.versions[one] for one in staying & self.versions.keys()]
                assert max(left, default=(-1, 0)) >= self.versions[incarnation]
            self.released.add(incarnation)

    # -- what always holds

    @invariant()
    def batches_follow_each_other(self):
        """Every sample of an epoch is used once, in order, in whatever state."""
        for worker in self.workers.values():
            at = (0, 0)
            for epoch, start, total in worker.state:
                assert (epoch, start) == at
                assert start + total <= SAMPLES
                at = (epoch, start + total) if start + total < SAMPLES else (epoch + 1, 0)

    @invariant()
    def a_plan_is_for_the_group(self):
        """All of its members have a part, and nobody else."""
        group = self.job.attempts.group
        for progress in self.job.iterations.progress.values():
            assert group is not None
            assert tuple(progress.plan.assignments) == group.names

    @invariant()
    def no_step_is_lost_while_one_that_took_it_takes_part(self):
        """A group goes on with the newest state of its members."""
        group = self.job.attempts.group
        if group is None or self.job.iterations.first_open != group.iteration:
            return
        number = self.job.attempts.number
        if number <= self.lost_in:
            return
        members = [w for w in self.workers.values() if w.name in group.names and w.attempt == number]
        versions = [(w.formed, len(w.state)) for w in members if w.formed not in (None, number)]
        if group.lacking or len(members) < len(group.names):
            assert all(steps <= group.iteration for formed, steps in versions if formed == max(versions)[0])
        else:
            assert {steps for _, steps in versions} <= {group.iteration, group.iteration + 1}

    @invariant()
    def what_is_written_down_is_the_newest_state(self):
        """Once the job has paused for that, whoever has the newest state has that one."""
        if not self.must_keep or self.job.attempts.keeping or self.job.attempts.is_recovering:
            return
        group = self.job.attempts.group
        having = [w for w in self.workers.values() if w.name in group.names and w.name not in group.lacking]
        assert all(w.state == self.file for w in having)

    @invariant()
    def attempts_never_go_back(self):
        """Not even where the manager is started again."""
        assert self.job.attempts.number >= self.highest or self.job.attempts.number <= 1
        self.highest = self.job.attempts.number

    @invariant()
    def no_group_is_of_a_later_attempt(self):
        """What workers have formed is known on disk, unless it has lost what was written."""
        number = self.job.attempts.number
        assert all((w.formed or 0) <= max(number, self.lost_in) for w in self.workers.values())

    @invariant()
    def records_add_up_to_whole_batches(self):
        """Also those of steps that were half done when the group broke."""
        assert all(sum(one.batch_sizes) == one.total for one in self.job.history(0, 1000))

    @invariant()
    def the_history_has_each_iteration(self):
        """Records follow each other; where a manager was started again, some may be missing."""
        numbers = [record.iteration for record in self.job.history(0, 1000)]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[-1] < self.job.iterations.first_open or self.job.attempts.is_recovering

    def teardown(self):
        """Whatever has happened: while somebody acts, training goes on, and its state is written down."""
        if not hasattr(self, "job"):
            return
        if self.paused:
            self.pause_or_resume()
        before, goal = self.job, self.most_steps + 3

        def has_trained():
            nonlocal before, goal
            if self.job is not before:
                before, goal = self.job, 3
            return self.most_steps >= goal

        self.go_on_until(has_trained)
        self.is_disk_full = False

        def is_kept():
            if not self.must_keep and self.job.members.started:
                self.keep(0)
            return self.must_keep and not self.job.attempts.keeping and not self.job.attempts.is_recovering

        self.go_on_until(is_kept)
        self.what_is_written_down_is_the_newest_state()
        self.batches_follow_each_other()

    @property
    def most_steps(self):
        """The most steps that a worker's parameters have had."""
        return max([len(worker.state) for worker in self.workers.values()], default=0)

    def go_on_until(self, reached):
        """Let workers act, and others join where they lack, until something is so."""
        end = self.now + RECOVERS
        while self.now < end and not reached():
            acting = [w for w in self.workers.values() if not w.frozen and not w.hung]
            lack = self.maximum * len(acting) < self.job.planner.batches.padded(len(acting))
            if not acting or not self.job.members.started or lack:
                self.join()
            self.all_act(4)
            self.tick(8.0)
        assert self.now < end, [*self.job.outbox.events][-12:]


AnyChange.TestCase.settings = driven(300, 40)
TestAnyChange = pytest.mark.machine(AnyChange.TestCase)
