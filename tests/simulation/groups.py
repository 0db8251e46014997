"""Process groups that the manager forms, of simulated workers, and jobs in them that a seed chooses.

What PyTorch's adapter does for a model (`worker.torch.formed_group`) is done here for a few parameters:
members meet at rank 0, connect each to each, take the newest state, compare it, and reduce gradients until a
member has gone. The manager, `AllReduce` and the sessions are the product's own.
"""

import errno
import json
import math
import os
import random
import socket as real_socket
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tests.simulation.cluster import EVERY, ITERATIONS, KINDS, Job, Scenario
from tests.simulation.modules import SimpleQueue, threading
from tests.simulation.network import Socket
from tests.simulation.product import product
from tests.simulation.world import World

_FORM_SECONDS = 30.0  # for members to connect, once all are there
_WAIT_SECONDS = 1_800.0  # for members to come, and for gradients
_UNHEARD_SECONDS = (10.0, 13.0)  # after which a connection that is a hole breaks, from and to
_HOST = "127.0.0.1"


class _Connection:
    """A connection of messages, each of them a line of JSON."""

    def __init__(self, socket):
        self._socket = socket
        self._arrived = b""
        self.set_timeout(_WAIT_SECONDS)

    @classmethod
    def to(cls, address):
        """Connect to an address, (host, port)."""
        socket = Socket()
        socket.connect(tuple(address))
        return cls(socket)

    @classmethod
    def accepted(cls, endpoint):
        """Return one that another process has made."""
        socket = Socket()
        socket.have(endpoint)
        return cls(socket)

    def set_timeout(self, seconds):
        """Set for how long `receive` waits."""
        self._socket.settimeout(seconds)

    def send(self, message):
        """Send a message."""
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self):
        """Return the next message (OSError: the connection has broken)."""
        while b"\n" not in self._arrived:
            if not (more := self._socket.recv(65_536)):
                raise ConnectionResetError("the other side has closed the connection")
            self._arrived += more
        line, _, self._arrived = self._arrived.partition(b"\n")
        return json.loads(line)

    def shut(self):
        """Let both sides' waits end by an error."""
        self._socket.shutdown(real_socket.SHUT_RDWR)

    def close(self):
        """Close it."""
        self._socket.close()


class _Port:
    """What a worker listens on for as long as it lives: other members come to it, to meet and to link.

    Args:
        process: The worker's.

    Attributes:
        over: Attempts below this are over.
    """

    def __init__(self, process):
        self.process = process
        self.address = _HOST, World.current.free_port()
        self.over = 0
        self._come = defaultdict(dict)  # connection and address, by attempt and what for, and by rank
        self._closed_below = 0  # attempts
        self._accepted = SimpleQueue()
        self._changed = threading.Condition()
        World.current.listeners[self.address] = self
        threading.Thread(target=self._serve).start()

    def take(self, endpoint):
        """Take a connection, as the kernel does."""
        self._accepted.put(_Connection.accepted(endpoint))

    def await_members(self, attempt, what, count, seconds):
        """Wait until so many members have come, and return connections and addresses by rank.

        Raises:
            OSError: They have not, or the attempt is over.
        """
        come = self._come[attempt, what]
        with self._changed:
            self._changed.wait_for(lambda: len(come) == count or self.over > attempt, seconds)
        self.check_not_over(attempt)
        if len(come) < count:
            raise TimeoutError(f"{len(come)} of {count} members have come to {what}")
        return come

    def check_not_over(self, attempt):
        """Raise OSError if an attempt is over."""
        if self.over > attempt:
            raise ConnectionAbortedError(f"attempt {attempt} is over")

    def end_before(self, attempt):
        """Let nothing wait in earlier attempts."""
        self.over = max(self.over, attempt)
        with self._changed:
            self._changed.notify_all()

    def close_before(self, attempt):
        """Close the connections of members that have come in earlier attempts, and of those that still do."""
        self._closed_below = attempt
        for key in [key for key in self._come if key[0] < attempt]:
            for connection, _ in self._come.pop(key).values():
                connection.close()

    def _serve(self):
        while True:
            threading.Thread(target=self._begin, args=(self._accepted.get(),)).start()

    def _begin(self, connection):
        try:
            attempt, what, rank, address = connection.receive()
        except OSError:
            return connection.close()
        if attempt < self._closed_below:
            return connection.close()
        self._come[attempt, what][rank] = connection, address
        with self._changed:
            return self._changed.notify_all()


class _Group:
    """The connected members of an attempt."""

    def __init__(self, rank, links):
        self._rank = rank
        self._links = dict(sorted(links.items()))  # by rank
        self._is_reducing = False
        self.broken = None  # why gradients cannot be reduced any more; None while they can

    def gather(self, own):
        """Return what all members have, by rank (OSError: one is gone)."""
        for link in self._links.values():
            link.send(own)
        found = {self._rank: own, **{rank: link.receive() for rank, link in self._links.items()}}
        return [found[rank] for rank in sorted(found)]

    def pass_on(self, source, own):
        """Return what a member has, in place of one's own (OSError: one is gone)."""
        if source != self._rank:
            return self._links[source].receive()
        for link in self._links.values():
            link.send(own)
        return own

    def sum(self, values):
        """Return the sum over the members, or anything where one has gone: the group is broken then."""
        if self.broken is None:
            self._is_reducing = True
            try:
                return np.sum(self.gather(values.tolist()), axis=0)
            except OSError as error:
                self.broken = self.broken or str(error)
            finally:
                self._is_reducing = False
        return values

    def set_timeout(self, seconds):
        """Set for how long members are waited for."""
        for link in self._links.values():
            link.set_timeout(seconds)

    def cut(self):
        """Let all that waits for other members end."""
        for link in self._links.values():
            link.shut()
        if self._is_reducing:
            self.broken = self.broken or "another attempt has begun"

    def close(self):
        """Close the connections."""
        for link in self._links.values():
            link.close()


class FormedGroup:
    """The process group of a few parameters; a `Former` of `worker.exchanges.all_reduce`.

    Args:
        process: The worker's.
        parameters: What it begins with where no other has any.

    Attributes:
        session: The worker's.
        batches: Those that the parameters were trained with, each as epoch, start, total, attempt, and the
            manager's process that had the group formed; noted before the step, as a forward pass moves the
            statistics of batch normalisation.
    """

    def __init__(self, session, process, parameters):
        self.session = session
        self._port = _Port(process)
        self.parameters = parameters
        self.batches = self._batches_before = []
        self._group = None
        self._attempt, self._manager = -1, None  # that the group is of
        self._gathering = None  # the connection at which members gather

    def serve(self, host):
        """Return the address at which other members come."""
        return "{}:{}".format(*self._port.address)

    def settle(self):
        """Return why the iteration under way does not count; None where it does."""
        return None if self._group is None else self._group.broken

    def begin_batch(self):
        """Go back to the state before a batch that did not count; else note the state before this one."""
        if self.settle() is None:
            self._batches_before = self.batches
        else:
            self.batches = self._batches_before

    def step(self, gradient, rate, part):
        """Sum a gradient over the members, report, and step; nothing where a member has gone."""
        stopwatch = self.session.meter.stopwatch
        batch = [part.epoch, part.batch_start, part.total, part.attempt, self._manager]
        self.batches = [*self.batches, batch]
        stopwatch.stop()
        total = self._group.sum(gradient)
        stopwatch.start()
        if self.settle() is None:
            self.session.report_before_step()
            self.parameters = self.parameters - rate * total

    def leave(self):
        """Do nothing: the others have all that this member has."""

    def cut(self, attempt):
        """End all waits for other members in groups of earlier attempts."""
        self._port.end_before(attempt)
        if self._attempt >= attempt:
            return
        if self._gathering is not None:
            self._gathering.shut()
        if self._group is not None:
            self._group.cut()

    def form(self, attempt, seat, has_state):
        """Form the group of an attempt, in which all members have the same state then."""
        errors = product().module("idl.errors")
        begun, self._manager = World.current.now, seat.manager
        try:
            self._connect(attempt, seat)
            connected = World.current.now
            if seat.source is not None:
                self._group.gather(seat.lacks)
                state = self._group.pass_on(seat.source, [self.parameters.tolist(), self.batches])
                self._port.check_not_over(attempt)
                if seat.lacks:
                    self.parameters, self.batches = np.array(state[0]), state[1]
                    self._batches_before = self.batches
            sent = World.current.now
            has_state()
            everywhere = self._group.gather([self.parameters.tolist(), self.batches])
        except OSError as error:
            raise errors.UnavailableError(f"attempt {attempt}, rank {seat.rank}: {error}") from error
        if any(one != everywhere[0] for one in everywhere):
            raise errors.InvalidRequestError(f"the members' states differ: {everywhere}")
        self._group.set_timeout(_WAIT_SECONDS)
        times = product().module("worker.exchanges.all_reduce").GroupTimes
        return times(connected - begun, sent - connected, World.current.now - sent)

    def close(self):
        """Close all connections, as at a process's end."""
        self._close_before(math.inf)
        World.current.listeners.pop(self._port.address, None)

    def _close_before(self, attempt):
        before, self._group, self._attempt = self._group, None, attempt
        if before is not None:
            before.close()
        self._port.close_before(attempt)

    def _connect(self, attempt, seat):
        """Meet the other members at rank 0, and connect to each."""
        self._close_before(attempt)
        addresses = self._meet(attempt, seat)
        links = {}
        for rank in range(seat.rank):
            links[rank] = _Connection.to(addresses[rank])
            links[rank].send([attempt, "link", seat.rank, self._port.address])
        above = self._port.await_members(attempt, "link", seat.size - 1 - seat.rank, _FORM_SECONDS)
        links |= {rank: link for rank, (link, _) in above.items()}
        self._group = _Group(seat.rank, links)
        self._group.set_timeout(_FORM_SECONDS)
        self._port.check_not_over(attempt)

    def _meet(self, attempt, seat):
        """Wait until all members are there, and return their addresses by rank."""
        if seat.rank == 0:
            met = self._port.await_members(attempt, "meet", seat.size - 1, _WAIT_SECONDS)
            addresses = [self._port.address, *(met[rank][1] for rank in range(1, seat.size))]
            for connection, _ in met.values():
                connection.send(addresses)
            return addresses
        host, _, port = seat.store.rpartition(":")
        self._gathering = _Connection.to((host, int(port)))
        try:
            self._port.check_not_over(attempt)
            self._gathering.send([attempt, "meet", seat.rank, self._port.address])
            return self._gathering.receive()
        finally:
            self._gathering.close()
            self._gathering = None


GROUP_KINDS = tuple(kind for kind in KINDS if not kind.endswith("shard"))


@dataclass(frozen=True)
class GroupScenario(Scenario):
    """A job without a parameter server, and its faults."""

    maximum: int = 0  # samples that a worker can take; 0 for any number

    @classmethod
    def of(cls, seed, kinds=GROUP_KINDS, every=EVERY):
        """Return the scenario of a seed, with a fault every so many seconds on average."""
        made = Scenario.of(seed, kinds, every)
        maximum = random.Random(seed + 2).choice((0, 0, 8))
        job = (made.policy, made.lookahead, made.faults, made.latency)
        return cls(seed, made.workers, 0, *job, keeps_names=made.keeps_names, maximum=maximum)

    def start(self, world, folder, outcome):
        """Start the job's processes."""
        return _GroupJob(world, folder, self, outcome)


class _GroupJob(Job):
    """The processes of one scenario."""

    keep = 60.0

    def __init__(self, *arguments):
        self._groups = {}  # of all workers so far, by name
        self._drained = set()  # names of workers that are, or are to be
        self._stepped = {}  # the time of each batch with its attempt, as the first member has noted it
        super().__init__(*arguments)

    @property
    def _most_samples(self):
        return self._scenario.maximum * self._count or super()._most_samples

    def _settings(self):
        maximum = self._scenario.maximum
        bounds = product().module("idl.bounds").Bounds
        return {"bounds": bounds(1, maximum)} if maximum else {}

    def _go_through(self, session, compute):
        problem, name = self._problem, session.config.worker
        spec, exchange = problem.SPEC, session.exchange
        group = FormedGroup(session, self.workers[name], np.zeros(problem.FEATURES))
        self._groups[name] = group
        slices = product().module("worker.data.slices").Slices
        order = {"shuffle": spec.shuffle, "seed": spec.seed}
        loader = slices(spec.dataset_size, spec.total_batch_size, session, **order)
        exchange.form_groups_by(group)
        session.before_batch.append(exchange.form_group)
        try:
            for part in self.slices(session, loader):
                compute(session)
                mean = problem.mean_gradient(group.parameters, part.indices)
                exchange.note_weighting("the loop", part.assignment.count)
                group.step(
                    mean * (part.assignment.count / part.assignment.total), problem.RATE, part.assignment
                )
                self._stepped.setdefault(tuple(group.batches[-1]), World.current.now)
                yield part
        finally:
            group.close()

    def _parameters(self, session):
        name = session.config.worker
        group = self._groups[name]
        if session.released is None and len(group.batches) != ITERATIONS:
            self._outcome.wrongs.append(f"{name} has noted {len(group.batches)} batches")
        return group.parameters

    def _note(self, part):
        """Do nothing: a state has its batches with it, and after some faults there are two states."""

    def possible(self, worker, is_last):
        """Return the parameters of one process with the batches of a worker's state.

        Raises:
            ValueError: A batch is missing, or does not begin where the one before it ends; or others went on
                in a later attempt meanwhile. A manager that has lost attempts gives their numbers to others:
                it is another manager's attempts after which its own come.
        """
        batches = self._groups[worker].batches if worker in self._groups else []
        if not is_last:
            # The step of the last one may not have been taken.
            return [*self._problem.versions_of([batch[:3] for batch in batches])][-2:]
        finished = (self._groups[name].batches for name, (_, is_last) in self.ends.items() if is_last)
        steps = {tuple(batch) for of_one in finished for batch in of_one}
        groups = [(manager, attempt) for *_, attempt, manager in sorted(steps, key=self._stepped.get)]
        managers = [*dict.fromkeys(manager for manager, _ in groups)]
        if groups != sorted(groups, key=lambda group: (managers.index(group[0]), group[1])):
            attempts = [attempt for _, attempt in groups]
            raise ValueError(f"two groups have gone on at once, in attempts {attempts}")
        return [self.trained_with(batches)]

    def _may_kill(self, worker):
        """Return whether another worker that lives has the state, without which the job is over.

        Who was drained may be released, with a state of which the others are not in need any more, and not
        have heard of it yet.
        """
        return any(
            self._groups[name].session.exchange._formed is not None
            for name in self.workers.keys() & self._groups.keys() - self._drained
            if name != worker.name and name not in self.ends
        )

    def _drain(self, worker):
        self._drained.add(worker.name)
        return super()._drain(worker)

    def _hole(self, endpoint):
        super()._hole(endpoint)
        for end in endpoint.process.endpoints:
            if end.socket is not None and end.peer.socket is not None:  # of two workers
                seconds = self._draw.uniform(*_UNHEARD_SECONDS)
                for one in (end, end.peer):
                    error = TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                    self._world.at(seconds, None, one.arrive_end, error)
