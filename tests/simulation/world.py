"""Virtual time: one heap of events, and threads that are greenlets.

Nothing runs but what an event starts: a thread runs until it waits, and takes no time but what it waits for.
Events of the same moment come in an order that the seed decides.
"""

import asyncio
import contextlib
import heapq
import itertools
import math
import random
import traceback
import zlib
from collections import deque

import greenlet

_FOREVER = 1e8  # seconds; a longer timeout is none
_BEGIN = 1_000.0  # the clock's first reading
_PATIENCE_EVENTS = 5_000_000  # of a run, after which something goes round in circles


class Killed(BaseException):
    """What ends the threads of a world that is over."""


class StalledError(Exception):
    """Nothing happens any more, or not what was waited for."""


class World:
    """Context manager that has the clock, the processes and their network.

    Args:
        seed: Decides the order of events of the same moment, latencies, and what else asks `random`.
        latency: Seconds that what is sent takes, at most.

    Attributes:
        now: Seconds.
        running: The process whose thread runs.
        listeners: The loop and the protocol's factory that listen on an address.
        locked: The process that has locked a file, by the file's device and number.
        failures: Errors that ended a thread or a loop's callback, with the process's name.
        digest: A checksum of all events so far: the same in every run of a seed.
    """

    current = None  # the world that is simulated now

    def __init__(self, seed, latency=0.001):
        self.random = random.Random(seed)
        self._latency = latency
        self.now = _BEGIN
        self.running = None
        self.listeners = {}
        self.locked = {}
        self.processes = []
        self.failures = []
        self.digest = self.events = 0
        self.over = False
        self._parted = {}  # when two processes, by their names, reach each other again
        self._ports = itertools.count(30_000)
        self._heap = []
        self._numbers = itertools.count()
        self._hub = greenlet.getcurrent()

    def __enter__(self):
        World.current = self
        return self

    def __exit__(self, *error):
        self.over = True  # whoever waits now is ended
        for thread in itertools.chain.from_iterable(process.threads for process in self.processes):
            if not thread.dead:
                with contextlib.suppress(Killed):
                    thread.throw(Killed)
        World.current = None

    def process(self, name):
        """Start a process, which has no threads yet."""
        process = Process(self, name)
        self.processes.append(process)
        return process

    def latency(self):
        """Return the seconds that what is sent now takes."""
        return self.random.uniform(0.1, 1.0) * self._latency

    def part(self, one, other, seconds):
        """Let two processes not reach each other for some seconds: what they send arrives then."""
        self._parted[frozenset((one.name, other.name))] = self.now + seconds

    def parted(self, one, other):
        """Return for how many seconds two processes do not reach each other yet."""
        return max(0.0, self._parted.get(frozenset((one.name, other.name)), 0.0) - self.now)

    def free_port(self):
        """Return a port that nobody has listened on."""
        return next(self._ports)

    def at(self, delay, process, action, *arguments):
        """Call a function after some seconds; of a process, as soon as it is not frozen, unless it is killed.

        Args:
            process: None for what the network or the operating system does.
        """
        when = self.now + max(0.0, delay)
        event = (when, self.random.random(), next(self._numbers), process, action, arguments)
        heapq.heappush(self._heap, event)

    def again(self, process, kept):
        """Let a process that was frozen do, in order, what it was to do meanwhile."""
        for action, arguments in kept:
            heapq.heappush(self._heap, (self.now, 0.0, next(self._numbers), process, action, arguments))

    def run(self, until, seconds):
        """Let time pass until a condition holds.

        Raises:
            StalledError: It does not hold after so many seconds, or nothing happens any more.
        """
        end, most = self.now + seconds, self.events + _PATIENCE_EVENTS
        while not until():
            if not self._heap or self._heap[0][0] > end or self.events > most:
                raise StalledError(f"not within {seconds:g} s; what waits:\n{self.waiting()}")
            self.now, _, _, process, action, arguments = heapq.heappop(self._heap)
            if process is not None and process.is_dead:
                continue
            if process is not None and process.is_frozen:
                process.kept.append((action, arguments))
                continue
            self.events += 1
            name = "" if process is None else process.name
            self.digest = zlib.crc32(f"{self.now:.9f} {name}".encode(), self.digest)
            self.running = process
            action(*arguments)

    def spawn(self, process, function):
        """Start a thread of a process."""

        def body():
            try:
                function()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - it would end the thread, and is looked at later
                self.failures.append((process.name, error))

        thread = greenlet.greenlet(body, parent=self._hub)
        process.threads.append(thread)
        self.at(0, process, thread.switch)

    def wait(self, waiters, timeout=None):
        """Let others run until one of them wakes this thread; return False if the timeout is over first.

        Args:
            waiters: A deque, in which this thread can be found meanwhile: see `wake`.
            timeout: Seconds; None for no limit.
        """
        if self.over:
            raise Killed
        waiter = _Waiter(self, self.running)
        waiters.append(waiter)
        if timeout is not None and timeout < _FOREVER:
            self.at(timeout, self.running, waiter.end, False)
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        is_woken = self._hub.switch()
        asyncio._set_running_loop(loop)
        if not is_woken:
            with contextlib.suppress(ValueError):
                waiters.remove(waiter)
        return is_woken

    def wake(self, waiters, most=math.inf):
        """Wake threads that wait, the first ones first; at most so many."""
        while waiters and most > 0:
            most -= waiters.popleft().wake()

    def sleep(self, seconds):
        """Let others run for some seconds."""
        self.wait(deque(), seconds)

    def waiting(self):
        """Return what the threads of all processes wait for, each by the last lines of its stack."""
        lines = []
        for process in self.processes:
            if not process.is_dead:
                lines.append(f"{process.name}{' (frozen)' if process.is_frozen else ''}")
                for thread in process.threads:
                    if thread.gr_frame is not None:
                        lines += traceback.format_stack(thread.gr_frame)[-5:-1]
        return "\n".join(lines)


class _Waiter:
    """A thread that waits: whoever wakes it first decides how."""

    def __init__(self, world, process):
        self._world = world
        self._process = process
        self._thread = greenlet.getcurrent()
        self._is_done = False

    def wake(self):
        """Wake the thread, unless it is woken already; return whether it was this call that did."""
        if self._is_done:
            return False
        self._is_done = True
        self._world.at(0, self._process, self._thread.switch, True)
        return True

    def end(self, is_woken):
        """Let the thread go on at once, unless it is woken already."""
        if not self._is_done:
            self._is_done = True
            self._thread.switch(is_woken)


class Process:
    """A process: threads, connections and locks that end with it."""

    def __init__(self, world, name):
        self._world = world
        self.name = name
        self.pid = 1 + len(world.processes)
        self.popen = None  # of a process that was started as one
        self.is_dead = self.is_frozen = self.was_frozen = False
        self.disk = None  # of its state; see `disk`
        self.clock = 0.0  # seconds that its clock of the day is ahead
        self.threads = []
        self.kept = []  # what it was to do while it was frozen
        self.endpoints = {}  # its open connections, in their order

    def freeze(self):
        """Stop all its threads; its connections stay, and their buffers fill."""
        self.is_frozen = self.was_frozen = True

    def thaw(self):
        """Let its threads go on."""
        self.is_frozen = False
        kept, self.kept = self.kept, []
        self._world.again(self, kept)

    def kill(self):
        """End it at once: its peers see their connections break, and its locks and its address are free."""
        self.is_dead = True
        for endpoint in list(self.endpoints):
            endpoint.reset()
        for taken in (self._world.listeners, self._world.locked):
            for key in [key for key, owner in taken.items() if owner.process is self]:
                del taken[key]

    @property
    def process(self):
        """Itself, as what it owns has it."""
        return self
