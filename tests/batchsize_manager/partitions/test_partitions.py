"""Local partitions: gaps stay bounded, and no sample is lost or used by two workers, whatever fails."""

import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batchsize_manager.partitions.partitioned_job import (
    Part,
    PartitionedJob,
    PartitionsConfig,
    plan_moves,
)
from idl.errors import InvalidRequestError, NotMemberError, UnavailableError
from idl.traversal import Traversal
from tests.state_machines import driven
from worker.partitions.partition import Chunk, OtherWorker, Partition, ReceivedSample, TransferOutcome

ROOM = 1000  # bytes; each sample here takes one


# -- the manager's side


def config(**changes):
    """Return options for two workers."""
    return PartitionsConfig(**{"workers": 2, "silence": 5.0, "move_timeout": 20.0} | changes)


def started(**samples):
    """Return a job whose workers, with these numbers of samples, have all noted its members."""
    partitions = PartitionedJob(config(workers=len(samples)))
    for name, count in samples.items():
        partitions.join(name, name, f"{name}:1", count, 0.0)
    for name, count in samples.items():
        partitions.report(name, name, Traversal(partitions.generation, count, 0, 0), 0.0)
    return partitions


parts = st.dictionaries(
    st.text("abcdefgh", min_size=1, max_size=3),
    st.builds(Part, st.integers(1, 10_000), st.integers(0, 100_000), st.integers(1, 1000)),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(parts)
def test_moves_bring_parts_close_to_the_rates(parts):
    """Each part has the size that its batch size asks for after the moves; none is empty."""
    sizes = {name: part.samples for name, part in parts.items()}
    total, batch = sum(sizes.values()), sum(part.batch_size for part in parts.values())
    moves = plan_moves(parts)
    for move in moves:
        assert move.samples >= 1
        assert parts[move.sender].pace <= parts[move.receiver].pace
        sizes[move.sender] -= move.samples
        sizes[move.receiver] += move.samples
    assert sum(sizes.values()) == total
    assert min(sizes.values()) >= 1
    assert len(moves) < max(len(parts), 1)
    for name, part in parts.items():
        if batch:
            assert abs(sizes[name] - total * part.batch_size / batch) <= len(parts)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(20, 200), st.integers(0, 40)), min_size=2, max_size=6),
    st.floats(0.5, 3.0),
)
def test_the_gap_is_bounded(workers, max_gap):
    """The gap stays within the bound with reports in each iteration and moves made at once."""
    partitions = PartitionedJob(config(workers=len(workers), max_gap=max_gap))
    names = [f"w{i}" for i in range(len(workers))]
    sizes = dict(zip(names, (samples for samples, _ in workers), strict=True))
    for name in names:
        partitions.join(name, name, f"{name}:1", sizes[name], 0.0)
    total, generation, drawn, iterations = sum(sizes.values()), -1, {}, 0
    for _ in range(200):
        if partitions.generation != generation:
            generation = partitions.generation
            drawn, iterations = dict.fromkeys(names, 0), 0
        iterations += 1
        for name, (_, batch) in zip(names, workers, strict=True):
            drawn[name] += batch
        traversals = [drawn[name] / sizes[name] for name in names]
        step = max(batch / sizes[name] for name, (_, batch) in zip(names, workers, strict=True))
        assert max(traversals) - min(traversals) <= max_gap + step + 1e-9  # rounding; it may be just that
        for name in names:
            partitions.report(name, name, Traversal(generation, sizes[name], drawn[name], iterations), 0.0)
        for name in names:
            for move in partitions.moves_of(name):
                sizes[name] -= move.samples
                sizes[move.receiver] += move.samples
            partitions.report(
                name, name, Traversal(generation, sizes[name], drawn[name], iterations, True), 0.0
            )
    assert sum(sizes.values()) == total


def test_a_gap_within_the_bound_moves_nothing():
    """Samples move when the bound is exceeded, not before."""
    partitions = started(a=100, b=100)
    for drawn, moves in ((299, False), (300, False), (301, True)):
        partitions.report("a", "a", Traversal(partitions.generation, 100, 100, 10), 1.0)
        partitions.report("b", "b", Traversal(partitions.generation, 100, drawn, 10), 1.0)
        assert bool(partitions.moves) is moves


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 90), min_size=1, max_size=60),
    st.lists(st.lists(st.booleans(), min_size=60, max_size=60), min_size=2, max_size=4),
)
def test_reports_at_different_times_are_no_gap(batches, reported):
    """Workers that use equally many samples are never apart, however the batch changes between reports."""
    names = "abcd"[: len(reported)]
    partitions = started(**dict.fromkeys(names, 10))
    for iterations in range(1, len(batches) + 1):
        for name, reports in zip(names, reported, strict=True):
            if reports[iterations - 1]:
                progress = Traversal(partitions.generation, 10, sum(batches[:iterations]), iterations)
                partitions.report(name, name, progress, 1.0)
                assert partitions.gap == 0
                assert not partitions.moves


def test_moves_that_take_too_long_are_given_up():
    """A receiver that cannot be reached does not stop the balancing for good."""
    partitions = started(a=100, b=100)
    generation = partitions.generation
    for name, drawn in (("a", 1000), ("b", 100)):
        partitions.report(name, name, Traversal(generation, 100, drawn, 10), 1.0)
    assert partitions.moves
    for now in range(2, 21):
        for name in "ab":
            partitions.report(name, name, Traversal(generation, 100, 1000, 10), float(now))
        partitions.tick(float(now))
    assert partitions.moves
    partitions.tick(21.0)
    assert not partitions.moves
    assert partitions.generation == generation + 1


# -- a worker's side


def pair():
    """Return two workers' partitions of 10 samples each, of which the first is to send 6 to the second."""
    partitions = {name: Partition(10, name, seed=1, room=ROOM) for name in "ab"}
    for partition in partitions.values():
        partition.note(1, {"a": "a", "b": "b"})
    partitions["a"].plan({"b": 6})
    return partitions["a"], partitions["b"]


def hand_over(sender, receiver, chunk):
    """Return the call that sends a chunk, to be made once or several times."""
    received = [ReceivedSample(OtherWorker(sender, sender), index, None, 1) for index in chunk.own]
    returned = [guest.index for guest in chunk.returned]
    return lambda: receiver.take(
        OtherWorker(sender, sender), chunk.receiver.incarnation, chunk.number, received, returned
    )


def test_a_traversal_uses_each_sample_once():
    """A traversal has its own samples and those received, in another order each time."""
    a, b = pair()
    chunk = a.next_chunk(4)
    hand_over("a", b, chunk)()
    b.note(2, {"a": "a", "b": "b"})
    first, second = (b.draw(14, iteration) for iteration in range(2))
    for traversal in (first, second):
        assert {sample for sample in traversal if not isinstance(sample, ReceivedSample)} == set(range(10))
        assert {sample.index for sample in traversal if isinstance(sample, ReceivedSample)} == set(chunk.own)
    assert first != second
    assert b.progress() == Traversal(2, 14, 28, 2)


def test_the_last_sample_stays():
    """The last sample is kept, however many are asked for."""
    a, _ = pair()
    a.note(2, {"a": "a", "b": "b"})
    a.plan({"b": 100})
    a.settle(a.next_chunk(100), TransferOutcome.TAKEN)
    assert len(a) == 1
    assert a.next_chunk(100) is None
    assert a.progress().moved


def test_a_worker_that_was_taken_out_uses_samples_that_no_other_can_have():
    """A worker that was taken out uses its own samples, but for those that another may have."""
    a, _ = pair()
    first = a.next_chunk(2)
    a.settle(first, TransferOutcome.TAKEN)
    second = a.next_chunk(3)
    hand_over("b", a, Chunk(1, OtherWorker("a", "a"), (0, 1), ()))()
    assert len(a) == 7
    a.evict("a2")
    assert a.generation == -1  # a manager that was started again counts from 0
    assert set(a.draw(50, 0)) == set(range(10)) - set(first.own) - set(second.own)
    with pytest.raises(NotMemberError, match="'a' is gone"):
        hand_over("b", a, Chunk(2, OtherWorker("a", "a"), (2,), ()))()
    a.rejoin()
    assert set(a.draw(50, 1)) == set(range(10))


def test_strangers_and_false_returns_are_refused():
    """Only members may send samples, and only samples that they have."""
    a, b = pair()
    a.note(2, {"a": "a"})
    with pytest.raises(UnavailableError, match="'b', 'b', is not known here"):
        hand_over("b", a, Chunk(1, OtherWorker("a", "a"), (0,), ()))()
    returned = (ReceivedSample(OtherWorker("b", "b"), 3, None, 1),)
    with pytest.raises(InvalidRequestError, match="sample 3: 'a' does not have it"):
        hand_over("a", b, Chunk(1, OtherWorker("b", "b"), (), returned))()


# -- both sides, and all that may happen between them


@dataclass
class Process:
    """A worker, driven as by its background thread."""

    name: str
    samples: int
    partition: Partition = field(init=False)
    ready: bool = False
    training: bool = False  # since it was ready for the first time

    def __post_init__(self):
        self.partition = Partition(self.samples, uuid.uuid4().hex, seed=1, room=ROOM)

    @property
    def peer(self):
        """The worker as others know it."""
        return OtherWorker(self.name, self.partition.incarnation)

    def usable(self):
        """Return the samples that it would use, as (origin, index)."""
        own = {(self.name, i) for i in range(self.samples) if self.partition._here[i]}
        return own | set(self.partition._received)


class Cluster(RuleBasedStateMachine):
    """Workers that draw, report, send, freeze and die, with calls that are lost, repeated and late."""

    SAMPLES = (6, 9, 12)

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.iteration = 0
        self.manager = PartitionedJob(config(workers=3, max_gap=1.0))
        self.processes = {f"w{i}": Process(f"w{i}", n) for i, n in enumerate(self.SAMPLES)}
        self.late = []  # calls of `take` that may still arrive

    names = st.sampled_from(["w0", "w1", "w2"])

    @initialize()
    def begin(self):
        """Let all workers join."""
        self.settle()

    @rule(fast=names, iterations=st.integers(1, 4))
    def iterate(self, fast, iterations):
        """Let all workers train, one of them with larger batches, and report."""
        for _ in range(iterations):
            self.iteration += 1
            for name, process in self.processes.items():
                if process.training:
                    usable = process.usable()
                    for sample in process.partition.draw(12 if name == fast else 2, self.iteration):
                        own = not isinstance(sample, ReceivedSample)
                        assert ((name, sample) if own else (sample.origin.worker, sample.index)) in usable
            self.talk_all()

    @rule()
    def talk_all(self):
        """Let all calls and answers arrive."""
        for name in self.processes:
            self.talk(name, True)

    @rule(name=names, answered=st.booleans())
    def talk(self, name, answered):
        """Join or report; the answer may be lost."""
        process, manager = self.processes[name], self.manager
        partition = process.partition
        try:
            if process.ready:
                manager.report(name, partition.incarnation, partition.progress(), self.now)
            else:
                manager.join(name, partition.incarnation, f"{name}:1", process.samples, self.now)
        except NotMemberError:
            process.ready = False
            partition.evict(uuid.uuid4().hex)
            return
        except UnavailableError:
            return  # the one that it replaces is not known to be gone yet
        if not answered or not (process.ready or manager.is_ready(name)):
            return
        if not process.ready:
            process.ready = process.training = True
            partition.rejoin()
        if partition.generation != manager.generation:
            members = {other: incarnation for other, (incarnation, _) in manager.members.items()}
            partition.note(manager.generation, members)
        partition.plan({move.receiver: move.samples for move in manager.moves_of(name)})

    @rule(name=names, arrives=st.booleans(), answered=st.booleans(), limit=st.integers(1, 8))
    def send(self, name, arrives, answered, limit):
        """Send a chunk, or try again; call or answer may be lost, or the call arrive later still."""
        process = self.processes[name]
        chunk = process.partition.next_chunk(limit)
        if chunk is None:
            return
        received = [ReceivedSample(process.peer, i, None, 1) for i in chunk.own]
        call = (
            process.peer,
            chunk.receiver,
            chunk.number,
            received,
            [sample.index for sample in chunk.returned],
        )
        self.late.append(call)
        if arrives:
            outcome = self.arrive(call)
            if answered and outcome is not None:
                process.partition.settle(chunk, outcome)

    @rule(age=st.integers(1, 6))
    def arrive_late(self, age):
        """Deliver a call that was repeated, or given up."""
        if age <= len(self.late):
            self.arrive(self.late[-age])

    def arrive(self, call):
        """Deliver a call, and act on its answer as the sender would."""
        sender, receiver, number, received, returned = call
        process = self.processes[receiver.worker]
        try:
            process.partition.take(sender, receiver.incarnation, number, received, returned)
        except NotMemberError:
            return TransferOutcome.GONE
        except UnavailableError:
            return None
        except InvalidRequestError:
            return TransferOutcome.REFUSED
        return TransferOutcome.TAKEN

    @rule(name=names)
    def kill(self, name):
        """Restart a worker at once, with all of its own samples and no memory."""
        self.processes[name] = Process(name, self.SAMPLES[int(name[1])])

    @rule(name=names)
    def freeze(self, name):
        """Keep a worker silent until it is taken out, though it still receives."""
        for _ in range(6):
            self.now += 1.0
            for other in self.processes:
                if other != name:
                    self.talk(other, True)
            self.manager.tick(self.now)

    @rule()
    def restart_manager(self):
        """Replace the manager by one that knows nothing, and counts generations from 0."""
        self.manager = PartitionedJob(self.manager._config)

    @rule(name=names, room=st.sampled_from([3, ROOM]))
    def change_room(self, name, room):
        """Change the number of samples that a worker takes."""
        self.processes[name].partition._room = room

    @invariant()
    def nobody_uses_anothers(self):
        """No two workers use the same sample, but for those that have not noticed being taken out."""
        members = {name: incarnation for name, (incarnation, _) in self.manager.members.items()}
        used = [
            process.usable()
            for name, process in self.processes.items()
            if process.training and (not process.ready or members.get(name) == process.partition.incarnation)
        ]
        assert sum(map(len, used)) == len(set().union(*used))

    def settle(self):
        """Run for a while without failures."""
        for process in self.processes.values():
            process.partition._room = ROOM
        for _ in range(60):
            self.now += 0.5
            for name in self.processes:
                self.talk(name, True)
                self.send(name, True, True, 5)
            self.manager.tick(self.now)

    def teardown(self):
        """Check that every sample is used by exactly one worker once nothing fails any more."""
        self.settle()
        assert not self.manager.moves
        used = [process.usable() for process in self.processes.values()]
        assert sum(map(len, used)) == sum(self.SAMPLES)
        assert len(set().union(*used)) == sum(self.SAMPLES)
        assert all(process.ready for process in self.processes.values())


Cluster.TestCase.settings = driven(60, 30)
TestCluster = pytest.mark.machine(Cluster.TestCase)
