"""A job under every fault at random, with workers and a shard that behave as the real ones.

The shard's ledger is the judge: whatever dies, freezes or is repeated, each step that holds in the end was
made of its whole batch, no sample twice, and the batches follow each other through the epochs.
"""

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.job.restoration import restore_job
from batchsize_manager.job.state import JobState
from batchsize_manager.policies import POLICIES, POLICIES_WITH_PREDICTOR, PolicyOptions, make_policy
from batchsize_manager.sizers import Choice, Sizer, Sizes, Sizing
from batchsize_manager.storage.json_values import from_json, to_json
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, NotMemberError, RewoundError, UnavailableError
from idl.plan import JobSpec
from idl.records import Report
from tests.batchsize_manager.job.driver import Choosy
from tests.state_machines import driven, replay

CHECKPOINT_EVERY = 3  # versions
MEMBERS = 5
MOST_MINIMUM = 4  # samples that a worker takes at least
MOST_WHOLE_MINIMUM = 6  # the same in whole micro-batches
LEAST = 30  # samples of a whole batch, that a sizer chooses at least: what all members' minima sum to
PICKS = st.integers(0, 2**16)  # one of those that there are, by the rest


def is_there(member):
    """Any member."""
    return True


def is_planned_for(member):
    """A member that is neither silent nor leaving."""
    return not member.suspended and member.last is None


def as_if_beating(state):
    """A state as if all members sent heartbeats: that a member begins to is no reason to write it."""
    return replace(state, members=tuple(replace(member, beats=True) for member in state.members))


class Shard:
    """Slices are known by place; a step is made of whole batches; older attempts are refused."""

    def __init__(self):
        self.attempt = 0
        self.rewound = 0  # the attempt that it was last rewound in
        self.instance = 0
        self.forgot_in = -1  # the last attempt in which it was started again
        self.version = 0
        self.arrived = []  # (start, count) of the present batch
        self.batch = None  # (epoch, start, total) of it
        self.steps = []  # by version: (epoch, start, total, slices)

    def push(self, part):
        """Take a slice; whether it was taken, or had come before."""
        if part.iteration < self.version:
            return True
        assert part.iteration == self.version
        batch = (part.epoch, part.batch_start, part.total)
        place = self.place(self.version)
        if self.arrived and batch != self.batch:
            raise RewoundError("another batch than others have pushed for", self.attempt + 1)
        if place is not None and batch[:2] not in (place, (place[0] + 1, 0)):
            raise RewoundError("a batch that does not follow the last", self.attempt + 1)
        self.batch = batch
        begin, end = part.start, part.start + part.count
        for start, count in self.arrived:
            if start <= begin and end <= start + count:
                return True
            if begin < start + count and start < end:
                return False
        self.arrived.append((part.start, part.count))
        if sum(count for _, count in self.arrived) == part.total:
            self.steps.append((part.epoch, part.batch_start, part.total, sorted(self.arrived)))
            self.version, self.arrived = self.version + 1, []
        return True

    def place(self, version):
        """Where the batch of a version begins, as far as it is known."""
        if not version:
            return None
        epoch, start, total, _ = self.steps[version - 1]
        return epoch, start + total

    def check(self, attempt, instance):
        """Refuse who is in another attempt, or knows another life of the shard."""
        if attempt != self.attempt or self.rewound != self.attempt or instance != self.instance:
            raise RewoundError("another attempt", self.attempt)

    def fence(self, attempt):
        """Begin an attempt."""
        if attempt < self.attempt:
            raise RewoundError("an earlier attempt", self.attempt)
        if attempt > self.attempt:
            self.attempt, self.arrived = attempt, []
        return self.version, self.place(self.version)

    def rewind(self, attempt, version):
        """Go back in an attempt; once."""
        if attempt != self.attempt:
            raise RewoundError("another attempt", self.attempt)
        if self.rewound != attempt:
            if self.forgot_in == attempt:
                raise RewoundError("it was started again since this attempt began", attempt)
            if version not in (self.version, self.version // CHECKPOINT_EVERY * CHECKPOINT_EVERY):
                raise RewoundError("there is no such checkpoint", attempt)
            del self.steps[version:]
            self.rewound, self.version, self.arrived = attempt, version, []
        return self.instance

    def crash(self):
        """Start again from the last checkpoint; nobody is let in before a new attempt."""
        self.version = self.version // CHECKPOINT_EVERY * CHECKPOINT_EVERY
        del self.steps[self.version :]
        self.arrived, self.rewound, self.instance = [], -1, self.instance + 1
        self.forgot_in = self.attempt


class Worker:
    """A worker: what it has to do, and how far it is."""

    def __init__(self, name, incarnation):
        self.name = name
        self.incarnation = incarnation
        self.attempt = 0
        self.instance = 0  # of the shard, as it knows
        self.minimum = 1  # samples that it takes at least
        self.todo = []  # assignments
        self.known = -1
        self.pushed = False  # what is first to do
        self.finished = []  # where it is planned ahead: what it has pushed, and has still to report
        self.waiting = True  # there, for the answer to its last call
        self.own = set()  # its parts of plans, not its pieces
        self.version = -1  # of its parameters
        self.must = None  # the attempt that it has heard of, and has to recover with
        self.fenced = None  # the attempt that it has fenced the shard with, and the version and place there
        self.begins = None  # the attempt whose first assignment it waits for, to rewind the shard to it
        self.frozen = False
        self.said = []  # reports


class Wanderer(Sizer):
    """A sizer that chooses any size, which depends on the iteration alone, or none."""

    def __init__(self, seed):
        self.seed = seed

    def choose(self, at):
        """Return a size, or in one of four iterations none."""
        number = random.Random(self.seed * 1000 + at.iteration).randrange(2**20)
        size = at.least + number // 4 % (at.most - at.least + 1)
        return Choice(at.rounded(size), "as it comes") if number % 4 else None


@dataclass(frozen=True)
class Wandering(Sizing):
    """A way to choose sizes in which they wander."""

    seed: int = 0

    def make(self, spec):
        """Make the sizer."""
        return Wanderer(self.seed)


class AnyFault(RuleBasedStateMachine):
    """Each rule is one thing that happens; workers do one thing at a time."""

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        lookahead=st.sampled_from([0, 0, 0, 1, 2]),
        workers=st.integers(1, 3),
        total=st.integers(30, 60),
        rest=st.integers(0, 60),
        drop_last=st.booleans(),
        scale=st.booleans(),
        maximum=st.sampled_from([1, 2**40]),
        micro_batch=st.sampled_from([None, 1, 2, 3]),
        wander=st.none() | st.integers(0, 2**20),
        release=st.booleans(),
    )
    def begin(
        self,
        policy,
        lookahead,
        workers,
        total,
        rest,
        drop_last,
        scale,
        maximum,
        micro_batch,
        wander,
        release,
    ):
        """Begin a job with the workers that it waits for."""
        self.policy, self.now, self.count, self.slow = policy, 0.0, 0, set()
        whole = micro_batch or 1
        self.everything = -(-(total + rest) // whole) * whole  # samples, in whole micro-batches
        self.sizing = Sizing()
        if wander is not None:
            scale = False
            self.sizing = Wandering("goodput", Sizes(LEAST, total + rest), seed=wander)
            self.everything = LEAST
        self.maximum = max(maximum, self.everything)  # so that the last one left can take the whole batch
        self.spec = JobSpec(total + rest, total, drop_last=drop_last, micro_batch=micro_batch)
        self.config = JobConfig(
            workers,
            lookahead,
            reconnect_grace=1.0,
            report_timeout=60.0,
            scale_batch=scale,
            keep=1e6,
            sizing=self.sizing,
            release=release,
        )
        self.job = Job(self.spec, self.config, self.made_policy())
        self.shard = Shard()
        self.workers = {}
        self.kept = []  # records
        self.state = None  # as the effects had it last
        self.settled = None  # the state at the last call of `settle`
        self.written = []  # the state of the job after each event, as the store has it
        self.unknown = set()  # incarnations that such a manager may not know
        self.lost_in = -1  # the last attempt of a manager that was killed before it had written all
        self.highest = 0  # attempt
        # Sizes that whole batches ever had, of the first workers; with a sizer, those that they may have.
        self.sizes = {total} if wander is None else {total, total + rest + 1}
        self.paused = self.was_paused = False  # by an operator
        self.planned = 0
        self.drained = set()  # incarnations
        self.before = []  # members as they were after the last steps
        for _ in range(workers):
            self.join()

    # -- what happens

    @precondition(lambda self: len(self.workers) < MEMBERS)
    @rule()
    def join(self):
        """A worker comes."""
        self.count += 1
        self.admit(Worker(f"w{self.count}", f"i{self.count}"))

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS, steps=st.integers(1, 4))
    def act(self, pick, steps):
        """A worker goes on."""
        worker = self.picked(pick)
        for _ in range(steps):
            self.now += 0.1
            if not worker.frozen and worker.name in self.workers:
                self.go_on(worker)

    @rule(steps=st.integers(1, 6))
    def all_act(self, steps):
        """All go on, one after the other."""
        for _ in range(steps):
            for worker in list(self.workers.values()):
                self.now += 0.1
                if not worker.frozen:
                    self.go_on(worker)

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS, which=PICKS, names_start=st.booleans())
    def report_again(self, pick, which, names_start):
        """A report comes again, now or much later; a stock client's does not say of what."""
        worker = self.picked(pick)
        if worker.said:
            report = worker.said[which % len(worker.said)]
            idle = not worker.frozen and not worker.todo and not worker.finished and not self.paused
            # Who was told of another attempt does not repeat what it said in the one before.
            same = worker.must is None and worker.begins is None and report.attempt == worker.attempt
            if not names_start and report == worker.said[-1] and idle and same:
                report = replace(report, start=None, attempt=None)
            self.tell(worker, report)

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS)
    def freeze_or_thaw(self, pick):
        """A worker stops, or goes on as if nothing had been."""
        worker = self.picked(pick)
        worker.frozen = not worker.frozen

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS)
    def die(self, pick):
        """A worker is killed, maybe between its push and its report."""
        worker = self.workers.pop(self.picked(pick).name)
        self.job.disconnect(worker.name, worker.incarnation, self.now)
        self.settle()

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS)
    def restart(self, pick):
        """A worker is killed, and started again at once under the same name."""
        old = self.workers.pop(self.picked(pick).name)
        self.job.disconnect(old.name, old.incarnation, self.now)
        self.count += 1
        self.admit(Worker(old.name, f"i{self.count}"))

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS, steps=st.integers(0, 6), after=st.integers(0, 4))
    def pause(self, pick, steps, after):
        """A worker stops for long enough to be suspended, and goes on."""
        worker = self.picked(pick)
        self.tick(0.5)
        worker.frozen = True
        self.all_act(steps)
        self.tick(11.0)
        self.all_act(after)
        worker.frozen = False
        if worker.name in self.workers:
            self.go_on(worker)

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS)
    def reconnect(self, pick):
        """A connection breaks, and the worker joins again through another."""
        worker = self.picked(pick)
        self.job.disconnect(worker.name, worker.incarnation, self.now)
        if worker.name not in self.job.members:
            worker.minimum = 1  # what an operator has given it went with its membership
        self.attempt_call(
            worker,
            lambda: self.job.join(*self.me(worker), Bounds(maximum=self.maximum), self.now),
            is_planned_for,
        )

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=PICKS)
    def leave(self, pick):
        """A worker goes for good."""
        worker = self.workers.pop(self.picked(pick).name)
        self.attempt_call(worker, lambda: self.job.leave(*self.me(worker), self.now))

    @rule(seconds=st.sampled_from([0.5, 2.0, 11.0, 70.0]))
    def tick(self, seconds):
        """Time passes; who is not frozen sends heartbeats meanwhile."""
        while seconds > 0:
            self.now += min(seconds, 2.0)
            seconds -= 2.0
            for worker in list(self.workers.values()):
                if not worker.frozen:
                    self.attempt_call(worker, lambda w=worker: self.beat(w))
                elif worker.name in self.job.members and self.waits(worker):
                    # It will find the answer that was sent to it meanwhile.
                    self.attempt_call(worker, lambda w=worker: self.ask(w))
            self.job.tick(self.now)
        self.settle()

    @rule(lost=st.integers(0, 3), forgets_members=st.booleans())
    def manager_crashes(self, lost, forgets_members):
        """The manager is started again from what it kept; the last records may be missing."""
        self.restart_manager(self.kept[: len(self.kept) - lost], forgets_members)

    @precondition(lambda self: self.written)
    @rule(pick=PICKS)
    def manager_loses_writes(self, pick):
        """The manager is started again from what it had written some time ago: the rest was lost."""
        self.lost_in = max(self.lost_in, self.job.attempts.number, self.shard.attempt)
        del self.written[pick % len(self.written) + 1 :]
        self.restore(**self.written[-1])
        self.unknown = {worker.incarnation for worker in self.workers.values()}
        self.paused = self.was_paused = self.job.operations.paused
        self.highest = 0

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS)
    def slow_down(self, pick):
        """The policy finds the job faster without a worker, or no longer."""
        self.slow ^= {self.picked(pick).name}

    @precondition(lambda self: self.shard.version)
    @rule()
    def shard_crashes(self):
        """The shard is started again from its checkpoint."""
        self.shard.crash()

    # -- what an operator does

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def change_policy(self, policy):
        """Another policy takes over; what was given stands."""
        given = self.given()
        self.policy = policy
        self.job.operations.change_policy(
            Balancing(policy, "ema", 0.1), self.made_policy(), "the policy", self.now
        )
        assert given <= self.given()
        self.settle_change()

    @rule(size=st.integers(1, 90) | st.sampled_from([0, 10**6]))
    def change_batch_size(self, size):
        """Batches are to have another size; it may be refused, and then newcomers, where it is small."""
        given, before = self.given(), self.job.planner.batches.total
        if self.config.scale_batch and size:
            # However few are left, their minima must fit into their part of it.
            size = max(size, self.config.workers * MOST_WHOLE_MINIMUM)
        try:
            self.job.operations.change_batch_size(size, self.now)
            self.sizes.add(size)
            assert self.job.planner.batches.total == size
        except InvalidRequestError:
            assert self.job.planner.batches.total == before
            minima = sum(m.bounds.minimum for m in self.job.members.by_name.values())
            assert (
                self.sizing.sizer
                or self.config.scale_batch
                or not (1 <= size <= self.spec.dataset_size and minima <= self.spec.cuts(size).padded)
            )
        assert given <= self.given() or self.job.attempts.is_recovering
        self.settle_change()

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS, minimum=st.integers(1, MOST_MINIMUM), more=st.sampled_from([0, 5, 2**40]))
    def change_bounds(self, pick, minimum, more):
        """A worker is to take more or less; the last one left must be able to take all."""
        worker = self.picked(pick)
        bounds = Bounds(minimum, max(minimum + more, self.everything))
        if worker.name in self.job.members:
            try:
                self.job.operations.change_bounds(worker.name, bounds, self.now)
                worker.minimum = minimum
                self.maximum = max(self.maximum, bounds.maximum)
            except InvalidRequestError:
                # With scaling, those who are silent count here, but the batch has no samples for them.
                assert self.spec.narrowed(bounds).minimum > 1 or self.config.scale_batch
        self.settle_change()

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS)
    def drain(self, pick):
        """A worker is to go once it has done what it was given; not the last."""
        worker = self.picked(pick)
        if worker.name in self.job.members:
            try:
                self.job.operations.drain(worker.name, self.now)
                self.drained.add(worker.incarnation)
            except InvalidRequestError:
                assert worker.name in self.job.members
        self.settle_change()

    @precondition(lambda self: self.workers)
    @rule(pick=PICKS, lives=st.booleans())
    def remove(self, pick, lives):
        """A worker is taken out by an operator, who knows that it is gone, or is wrong."""
        worker = self.picked(pick)
        if worker.name in self.job.members:
            self.job.operations.remove(worker.name, self.now)
        if not lives:
            del self.workers[worker.name]
        self.settle()

    @rule()
    def pause_or_resume_the_job(self):
        """Nothing more is planned, or what is next."""
        self.paused = not self.paused
        planned = self.job.iterations.planned
        _ = self.job.operations.pause(self.now) if self.paused else self.job.operations.resume(self.now)
        assert not self.paused or self.job.iterations.planned <= planned
        self.settle_change()

    # -- how workers behave

    def go_on(self, worker):
        """Do the next thing: recover, push, report or ask."""
        if worker.must is not None:
            self.attempt_call(worker, lambda: self.recover(worker))
        elif worker.begins is not None:
            self.attempt_call(worker, lambda: self.begin_attempt(worker))
        elif self.config.lookahead:
            self.go_on_ahead(worker)
        elif not worker.todo:
            self.attempt_call(worker, lambda: self.ask(worker))
        elif not worker.pushed:
            self.attempt_call(worker, lambda: self.push(worker))
        else:
            worker.pushed = False
            self.tell(worker, self.report_of(worker, worker.todo.pop(0)))

    def go_on_ahead(self, worker):
        """The thread that reports goes on, which has each report answered before the next; then the other."""
        if worker.waiting:
            self.attempt_call(worker, lambda: self.ask(worker))
        elif worker.finished:
            worker.waiting = True
            self.tell(worker, self.report_of(worker, worker.finished.pop(0)))
        if worker.todo and worker.must is None and worker.name in self.workers:
            self.attempt_call(worker, lambda: self.push(worker))
            if worker.pushed:
                worker.finished.append(worker.todo.pop(0))
                worker.pushed = False

    def report_of(self, worker, part):
        """What it reports of a part."""
        seconds = 0.01 * part.count * (1 + int(worker.name[1:]))
        worker.said.append(Report(part.iteration, seconds, attempt=part.attempt, start=part.start))
        return worker.said[-1]

    def push(self, worker):
        """Push what is first to do, once the parameters for it are there."""
        part = worker.todo[0]
        cuts = self.spec.cuts(part.total)
        assert cuts.position(cuts.index(part.start - part.batch_start)) == part.start - part.batch_start
        assert cuts.position(cuts.index(part.end - part.batch_start)) == part.end - part.batch_start
        try:
            self.shard.check(part.attempt, worker.instance)
            if part.iteration <= self.shard.version:
                if part.iteration != worker.version:  # it pulls for its own parts alone
                    assert part in worker.own
                    worker.version = part.iteration
                taken = not part.count or self.shard.push(part)
                # Refused only where others have been given parts of it, so that its report does not count.
                worker.pushed = taken or part not in self.open_parts(worker)
                if not worker.pushed and part.attempt <= self.lost_in:  # of a plan that was lost
                    raise RewoundError("it overlaps another's slice", self.shard.attempt + 1)
                assert worker.pushed
        except RewoundError as error:
            worker.must = error.attempt

    def tell(self, worker, report):
        """Report, and take the answer if there is one."""

        def call():
            self.job.report(*self.me(worker), report, self.now)
            if (not worker.todo or worker.waiting) and worker.name in self.workers:
                self.ask(worker)

        self.attempt_call(worker, call)

    def beat(self, worker):
        """Send a heartbeat."""
        must = self.job.heartbeat(*self.me(worker), worker.attempt, self.now)
        worker.must = must if must is not None else worker.must

    def ask(self, worker):
        """Take what the service would answer."""
        known = worker.known if self.config.lookahead else -1
        if self.job.members.why_released(*self.me(worker), known) is not None:
            worker.waiting = False
            if not worker.todo and not worker.finished:
                del self.workers[worker.name]
            return
        must = self.job.must_recover(*self.me(worker))
        if must is not None:
            worker.must = must
            return
        part = self.job.next_assignment(*self.me(worker), known)
        if part is None:
            if self.job.operations.paused and (worker.todo or worker.finished):
                worker.waiting = False
            return
        worker.waiting = False
        if self.config.lookahead:
            new = [part, *self.job.assignments_after(worker.name, part.iteration)]
            assert [p.iteration for p in new] == list(range(part.iteration, part.iteration + len(new)))
            worker.todo += new
        else:
            worker.todo = [part]
        for p in self.job.iterations.progress.values():
            worker.own.update({p.plan.assignments.get(worker.name)} & {*worker.todo})
        worker.known = worker.todo[-1].iteration
        worker.attempt = part.attempt

    def recover(self, worker):
        """Have an attempt begun and fence the shard; later, tell the manager where it can go on."""
        worker.todo, worker.pushed, worker.known, worker.version = [], False, -1, -1
        worker.finished, worker.waiting, worker.begins = [], True, None
        if worker.fenced is None:
            known = max(worker.attempt, worker.must - 1)
            attempt = self.job.recover(*self.me(worker), known, self.now)
            try:
                worker.fenced = attempt, *self.shard.fence(attempt)
            except RewoundError as error:
                worker.must = error.attempt
            return
        (attempt, version, place), worker.fenced = worker.fenced, None
        self.job.rewind(*self.me(worker), attempt, version, self.now, place)
        worker.must, worker.attempt, worker.begins = None, attempt, attempt
        self.begin_attempt(worker)

    def begin_attempt(self, worker):
        """Rewind the shard to the first assignment of an attempt, once that is there."""
        if not worker.todo:
            self.ask(worker)
        if worker.todo:
            attempt, worker.begins = worker.begins, None
            try:
                worker.instance = self.shard.rewind(attempt, worker.todo[0].iteration)
            except RewoundError as error:
                worker.must = error.attempt

    # -- helpers

    def me(self, worker):
        """Name and incarnation."""
        return worker.name, worker.incarnation

    def picked(self, pick):
        """One of the live workers."""
        return list(self.workers.values())[pick % len(self.workers)]

    def admit(self, worker):
        """Let a worker join, which is refused exactly where its minimum does not fit into the batch.

        It gives up where it waits for a member that is frozen, and alone, so that nobody takes it for dead.
        """
        for _ in range(400):
            fits = self.has_room(worker, is_planned_for)
            try:
                self.job.join(*self.me(worker), Bounds(maximum=self.maximum), self.now)
                assert fits
                worker.instance = self.shard.instance
                self.workers[worker.name] = worker
            except InvalidRequestError:
                assert not fits
            except UnavailableError:  # who had its name may yet come back to a manager that was started again
                self.tick(2.0)
                continue
            break
        self.settle()

    def has_room(self, worker, beside):
        """Whether a worker's minimum fits beside the other members' into a batch for so many, and for it."""
        others = [m for name, m in self.job.members.by_name.items() if name != worker.name]
        own = self.spec.narrowed(Bounds(worker.minimum, self.maximum)).minimum
        minima = own + sum(m.bounds.minimum for m in others)
        return minima <= self.job.planner.batches.padded(len([m for m in others if beside(m)]) + 1)

    def waits(self, worker):
        """Whether it has asked, and has no answer yet."""
        return worker.waiting if self.config.lookahead else not worker.todo

    def open_parts(self, worker):
        """What the job has open for a worker."""
        return [part for p in self.job.iterations.progress.values() for part in p.open.get(worker.name, ())]

    def given(self):
        """The parts that somebody was told of and has still to do."""
        return {
            part
            for w in self.workers.values()
            for part in self.open_parts(w)
            if part in w.todo or part in w.finished
        }

    def attempt_call(self, worker, call, beside=is_there):
        """Make a call for a worker; who is no member any more ends, or whose place others have taken."""
        fits = worker.name in self.job.members or self.has_room(worker, beside)
        try:
            call()
        except NotMemberError:
            if worker.incarnation in self.unknown:
                self.join_again(worker)
            else:
                self.workers.pop(worker.name, None)
        except InvalidRequestError:
            assert not fits
            self.workers.pop(worker.name, None)
        except UnavailableError:  # another had its name when the manager was started again
            self.tick(2.0)
            if worker.name in self.workers:  # else its heartbeat has found that it is no member
                self.attempt_call(worker, call, beside)
        self.settle()

    def join_again(self, worker):
        """Let a worker be a member again of a manager that does not know it; what it called about is void."""
        self.unknown.remove(worker.incarnation)
        if self.job.members.is_released(*self.me(worker)):
            self.workers.pop(worker.name, None)
            return
        fits = self.has_room(worker, is_planned_for)
        try:
            self.job.join(*self.me(worker), Bounds(maximum=self.maximum), self.now, again=True)
            assert fits
            worker.must = worker.attempt + 1
        except (NotMemberError, UnavailableError):  # it was taken out meanwhile, or another has its name
            self.workers.pop(worker.name, None)
        except InvalidRequestError:
            assert not fits
            self.workers.pop(worker.name, None)

    def made_policy(self):
        """Make the job's policy, which names those workers that are slow now."""
        predictor = "auto" if self.policy in POLICIES_WITH_PREDICTOR else "memoryless"
        return Choosy(self.slow, make_policy(self.policy, PolicyOptions(predictor)))

    def settle(self):
        """Keep what the store would."""
        effects = self.job.take_effects()
        if effects.rewound is not None:
            self.kept = [record for record in self.kept if record.iteration < effects.rewound]
        self.kept += effects.completed
        self.state = effects.state or self.state
        saved = self.job.saved
        self.before = [*self.before[-2:], saved.members]
        if self.job.members.started and (effects or saved != self.settled):
            assert self.state == saved or as_if_beating(self.state) == as_if_beating(saved)
            self.written.append(self.with_records(self.state, self.kept))
        self.settled = saved

    def settle_change(self):
        """Keep what the store would before an operator is answered: the members as they are now, too."""
        self.settle()
        self.before = [self.job.members.saved]

    def restart_manager(self, records, forgets_members):
        """Make the job again from what was kept."""
        members = self.before[0] if forgets_members else self.before[-1]
        self.restore(**self.with_records(replace(self.job.saved, members=members), records))
        for name in self.workers.keys() - set(self.job.members):
            del self.workers[name]  # it would be told that it is no member

    def with_records(self, state, records):
        """What the store has of the job: this state and these records, and the events so far."""
        return {"state": state, "records": list(records), "events": list(self.job.outbox.events)}

    def restore(self, state, **records):
        """Make the job again from what the store has, as text."""
        state = from_json(JobState, to_json(state))
        self.job = restore_job(state, self.config, self.made_policy(), now=self.now, **records)
        self.kept = list(records["records"])
        self.before, self.settled = [state.members], None

    # -- what always holds

    @invariant()
    def each_step_has_its_whole_batch(self):
        """The slices of a step tile its batch."""
        for _, start, total, slices in self.shard.steps:
            position = start
            for begin, count in slices:
                assert begin == position
                position += count
            assert position == start + total

    @invariant()
    def batches_follow_each_other(self):
        """Every sample of an epoch is used once, in order; with drop_last, but for less than a batch."""
        at = (0, 0)
        for epoch, start, total, _ in self.shard.steps:
            if (epoch, start) != at:
                left = self.spec.dataset_size - at[1]
                assert (epoch, start) == (at[0] + 1, 0)
                assert left == 0 or (self.spec.drop_last and left < 3 * MEMBERS * max(self.sizes))
            at = (epoch, start + total)
        if not self.config.scale_batch and len(self.sizes) == 1:
            for iteration, (epoch, start, total, _) in enumerate(self.shard.steps):
                assert self.spec.batch(iteration) == (epoch, start, total)

    @invariant()
    def attempts_never_go_back(self):
        """Neither the job's nor the shard's."""
        assert self.job.attempts.number >= self.highest
        assert self.shard.attempt <= max(self.job.attempts.number, self.lost_in)
        self.highest = self.job.attempts.number

    @invariant()
    def parts_tile_the_batch(self):
        """Of each iteration under way, what is open, pooled and done covers the batch once."""
        for progress in self.job.iterations.progress.values():
            parts = [*progress.pool]
            parts += [part for parts in progress.open.values() for part in parts]
            parts += [done.part for reports in progress.done.values() for done in reports]
            position = progress.plan.start
            for part in sorted(parts, key=lambda part: (part.start, part.count)):
                assert (part.start, part.attempt) == (position, self.job.attempts.number)
                position += part.count
            assert position == progress.plan.start + progress.plan.total

    @invariant()
    def parts_are_within_bounds(self):
        """Nobody is given more than it could take when it joined, and only members have parts to come."""
        for progress in self.job.iterations.progress.values():
            assert all(part.count <= self.maximum for part in progress.plan.assignments.values())

    @invariant()
    def nothing_is_planned_beyond_the_lookahead(self):
        """Nobody begins an iteration before all have reported those that it has to wait for."""
        iterations = self.job.iterations
        assert iterations.planned <= iterations.first_open + 1 + self.config.lookahead

    @invariant()
    def records_are_of_whole_batches(self):
        """They follow each other, end before what is under way, and no sample of theirs is missing."""
        records = self.job.history(0, 10**6)
        numbers = [record.iteration for record in records]
        assert numbers == sorted(set(numbers))
        assert not numbers or numbers[-1] < self.job.iterations.first_open or self.job.attempts.is_recovering
        assert all(sum(record.batch_sizes) == record.total for record in records)
        assert list(self.job.lost_since(0)) == []

    @invariant()
    def a_paused_job_plans_nothing(self):
        """However workers and services come and go."""
        assert self.job.operations.paused == self.paused
        if self.paused and not self.job.attempts.is_recovering and self.job.members.started:
            assert (
                self.job.iterations.planned <= max(self.planned, self.job.iterations.first_open)
                or not self.was_paused
            )
        self.was_paused, self.planned = self.paused, self.job.iterations.planned

    @invariant()
    def what_is_complete_has_arrived(self):
        """The manager never believes a step that the shard has not made, unless the shard forgot it since."""
        if (
            not self.job.attempts.is_recovering
            and self.shard.rewound == self.job.attempts.number > self.shard.forgot_in
        ):
            assert self.shard.version >= self.job.iterations.first_open

    @invariant()
    def the_job_can_go_on(self):
        """There is no failure, and while anybody is there it has not ended."""
        assert self.job.attempts.failure is None
        assert self.job.has_ended == (not len(self.job.members) and not self.job.presence.awaited_until)

    def teardown(self):
        """Whatever has happened: while somebody is there and not frozen, training goes on."""
        if not hasattr(self, "job"):
            return
        if self.paused:
            self.pause_or_resume_the_job()
        goal = self.shard.version + 3
        # Who sends no heartbeats is waited for ten times as long as iterations took; then another one may be.
        end = 2000.0 + 40.0 * self.now
        while self.shard.version < goal and self.now < end:
            if not self.job.members.started or all(worker.frozen for worker in self.workers.values()):
                self.join()
                if all(worker.frozen for worker in self.workers.values()):  # there was no room for another
                    for worker in self.workers.values():
                        worker.frozen = False
            before = self.shard.version
            self.all_act(3)
            if self.shard.version == before:
                self.tick(20.0)
        assert self.shard.version >= goal, [*self.job.outbox.events][-12:]
        self.each_step_has_its_whole_batch()
        self.batches_follow_each_other()


AnyFault.TestCase.settings = driven(3000, 40)
TestAnyFault = pytest.mark.machine(AnyFault.TestCase)


# What failed once, in the fewest steps.
BEGIN = {
    "policy": "even",
    "lookahead": 0,
    "workers": 1,
    "total": 30,
    "rest": 0,
    "drop_last": False,
    "scale": False,
    "maximum": 1,
    "micro_batch": None,
    "wander": None,
    "release": False,
}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [
                ("begin", BEGIN | {"workers": 3, "rest": 54}),
                ("act", {"pick": 0, "steps": 1}),
                ("freeze_or_thaw", {"pick": 0}),
                ("act", {"pick": 1, "steps": 3}),
                ("tick", {"seconds": 70.0}),
                ("reconnect", {"pick": 0}),
                ("freeze_or_thaw", {"pick": 0}),
                ("all_act", {"steps": 3}),
            ],
            id="one reports what it had to do before it was taken out and joined again",
        ),
        pytest.param(
            [
                ("begin", BEGIN | {"scale": True}),
                ("change_bounds", {"pick": 0, "minimum": 4, "more": 0}),
                ("freeze_or_thaw", {"pick": 0}),
                ("manager_crashes", {"lost": 0, "forgets_members": False}),
                ("tick", {"seconds": 70.0}),
                ("freeze_or_thaw", {"pick": 0}),
                ("tick", {"seconds": 0.5}),
            ],
            id="all were cut off, and the batch follows the number of those who are there",
        ),
        pytest.param(
            [
                ("begin", BEGIN | {"rest": 54}),
                ("act", {"pick": 0, "steps": 5}),
                ("change_batch_size", {"size": 20}),
                ("act", {"pick": 0, "steps": 20}),
                ("manager_loses_writes", {"pick": 0}),
                ("act", {"pick": 0, "steps": 20}),
            ],
            id="a change of the batch size is lost",
        ),
        pytest.param(
            [
                ("begin", BEGIN),
                ("join", {}),
                ("change_batch_size", {"size": 3}),
                ("join", {}),
                ("join", {}),
                ("act", {"pick": 0, "steps": 1}),
                ("leave", {"pick": 0}),
                ("join", {}),
                ("pause", {"after": 1, "pick": 0, "steps": 4}),
                ("tick", {"seconds": 70.0}),
                ("report_again", {"names_start": False, "pick": 1, "which": 0}),
            ],
            id="one that waits repeats its report, just after it has got what another could not do",
        ),
    ],
)
def test_what_failed_once(steps):
    """Steps in which the job, or the model of its workers, went wrong before."""
    replay(AnyFault, *steps)
