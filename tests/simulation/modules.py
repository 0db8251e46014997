"""The standard library for time, threads, locks of files and chance, as simulated processes have it."""

import errno
import fcntl as real_fcntl
import importlib.util
import os
import queue as real_queue
import random as real_random
import sys
import threading as real_threading
import time as real_time
import types
import uuid as real_uuid
from collections import deque
from concurrent import futures as real_futures

import greenlet

from tests.simulation.world import World

_EPOCH = 1.7e9  # seconds since 1970 at which the virtual clock would read 0


def _world():
    assert World.current is not None, "nothing is simulated now"
    return World.current


def like(module, **own):
    """Return a module that has all of another one's names but for its own."""
    made = types.ModuleType(module.__name__)
    vars(made).update({name: value for name, value in vars(module).items() if not name.startswith("__")})
    vars(made).update(own)
    return made


# -- time


def _now():
    return World.current.now if World.current is not None else 0.0


def _now_ns():
    return round(_now() * 1e9)


def _of_the_day():
    world = World.current
    return _EPOCH + _now() + (world.running.clock if world is not None and world.running is not None else 0.0)


time = like(
    real_time,
    **dict.fromkeys(("monotonic", "perf_counter", "process_time", "thread_time"), _now),
    **dict.fromkeys(("monotonic_ns", "perf_counter_ns"), _now_ns),
    time=_of_the_day,
    time_ns=lambda: round(_of_the_day() * 1e9),
    sleep=lambda seconds: _world().sleep(seconds),
)

# -- threads


class Lock:
    """`threading.Lock`."""

    def __init__(self):
        self._is_held = False
        self._waiters = deque()

    def acquire(self, blocking=True, timeout=-1):
        """Take it, once nobody has it."""
        while self._is_held:
            limit = None if timeout < 0 else timeout
            if not blocking or not _world().wait(self._waiters, limit):
                return False
        self._is_held = True
        return True

    def release(self):
        """Give it to whoever waits first."""
        self._is_held = False
        if self._waiters:
            _world().wake(self._waiters, 1)

    def locked(self):
        """Return whether somebody has it."""
        return self._is_held

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *error):
        self.release()


class RLock(Lock):
    """`threading.RLock`."""

    def __init__(self):
        super().__init__()
        self._owner, self._times = None, 0

    def acquire(self, blocking=True, timeout=-1):
        """Take it, once nobody else has it."""
        if self._owner is not greenlet.getcurrent():
            if not super().acquire(blocking, timeout):
                return False
            self._owner = greenlet.getcurrent()
        self._times += 1
        return True

    def release(self):
        """Give it back, once for each time that it was taken."""
        if World.current is not None and World.current.over:
            return  # this thread is ended wherever it waits
        assert self._owner is greenlet.getcurrent(), "a lock is released by another thread"
        self._times -= 1
        if not self._times:
            self._owner = None
            super().release()

    def release_all(self):
        """Give it back however often it was taken; return how often."""
        times, self._times = self._times, 1
        self.release()
        return times

    def acquire_times(self, times):
        """Take it so many times."""
        self.acquire()
        self._times = times


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock=None):
        self._lock = RLock() if lock is None else lock
        self._waiters = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self):
        return self._lock.__enter__()

    def __exit__(self, *error):
        return self._lock.__exit__(*error)

    def wait(self, timeout=None):
        """Wait until another thread notifies."""
        times = self._lock.release_all()
        is_woken = _world().wait(self._waiters, timeout)
        self._lock.acquire_times(times)
        return is_woken

    def wait_for(self, predicate, timeout=None):
        """Wait until a predicate holds."""
        end = None if timeout is None else _now() + timeout
        while not (result := predicate()):
            left = None if end is None else end - _now()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n=1):
        """Wake so many threads."""
        _world().wake(self._waiters, n)

    def notify_all(self):
        """Wake all threads that wait."""
        waiters, self._waiters = self._waiters, deque()
        if waiters:
            _world().wake(waiters)


class Event:
    """`threading.Event`."""

    def __init__(self):
        self._is_set = False
        self._waiters = deque()

    def is_set(self):
        """Return whether it is set."""
        return self._is_set

    def set(self):
        """Set it, and wake whoever waits."""
        self._is_set = True
        if self._waiters:
            _world().wake(self._waiters)

    def clear(self):
        """Take it back."""
        self._is_set = False

    def wait(self, timeout=None):
        """Wait until it is set."""
        if not self._is_set:
            _world().wait(self._waiters, timeout)
        return self._is_set


class Barrier(real_threading.Barrier):
    """`threading.Barrier`."""

    def __init__(self, parties, action=None, timeout=None):
        super().__init__(parties, action, timeout)
        self._cond = Condition()


class Thread:
    """`threading.Thread`."""

    def __init__(self, group=None, target=None, name="", args=(), kwargs=None, *, daemon=None):
        self._target, self._arguments, self._options = target, args, kwargs or {}
        self._has_begun, self._ended = False, Event()
        self.name, self.daemon, self.ident = name, daemon, id(self)

    def start(self):
        """Start it in the process whose thread runs."""
        self._has_begun = True
        _world().spawn(_world().running, self._run)

    def run(self):
        """Call the function that it was made with."""
        self._target(*self._arguments, **self._options)

    def join(self, timeout=None):
        """Wait for its end."""
        self._ended.wait(timeout)

    def is_alive(self):
        """Return whether it runs."""
        return self._has_begun and not self._ended.is_set()

    def _run(self):
        try:
            self.run()
        finally:
            self._ended.set()


threading = like(
    real_threading, Lock=Lock, RLock=RLock, Condition=Condition, Event=Event, Barrier=Barrier, Thread=Thread
)


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self):
        self._items, self._waiters = deque(), deque()

    def put(self, item, block=True, timeout=None):
        """Add an item."""
        self._items.append(item)
        if self._waiters:
            _world().wake(self._waiters, 1)

    def get(self, block=True, timeout=None):
        """Take the first item, once there is one."""
        while not self._items:
            if not block or not _world().wait(self._waiters, timeout):
                raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self):
        """Take the first item."""
        return self.get(block=False)

    def empty(self):
        """Return whether there is no item."""
        return not self._items

    def qsize(self):
        """Return the number of items."""
        return len(self._items)


queue = like(real_queue, SimpleQueue=SimpleQueue)


def _simulated_base():
    """Return a copy of `concurrent.futures._base` on simulated locks: futures, and how to wait for them."""
    spec = importlib.util.find_spec("concurrent.futures._base")
    module = importlib.util.module_from_spec(spec)
    real = {name: sys.modules[name] for name in ("threading", "time")}
    sys.modules.update(threading=threading, time=time)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.update(real)
    return module


_base = _simulated_base()


def as_completed(calls, timeout=None):
    """`concurrent.futures.as_completed`, which yields those that are done at the same time in their order."""
    assert timeout is None
    left = list(calls)
    while left:
        _base.wait(left, return_when=_base.FIRST_COMPLETED)
        done = [call for call in left if call.done()]
        left = [call for call in left if call not in done]
        yield from done


class ThreadPoolExecutor(_base.Executor):
    """`concurrent.futures.ThreadPoolExecutor`."""

    def __init__(self, max_workers=1, thread_name_prefix="", initializer=None, initargs=()):
        assert initializer is None
        self._free, self._calls, self._is_down = max_workers, deque(), False

    def submit(self, function, /, *arguments, **options):
        """Call a function as soon as a thread is free."""
        if self._is_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = _base.Future()
        self._calls.append((future, function, arguments, options))
        if self._free:
            self._free -= 1
            _world().spawn(_world().running, self._work)
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        """Take no further calls."""
        self._is_down = True
        waited = [call[0] for call in self._calls]
        if cancel_futures:
            self._calls.clear()
        if wait:
            _base.wait(waited)

    def _work(self):
        while self._calls:
            future, function, arguments, options = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = function(*arguments, **options)
                except Exception as error:  # noqa: BLE001 - raised where the result is asked for
                    future.set_exception(error)
                else:
                    future.set_result(result)
        self._free += 1


futures = like(
    real_futures,
    ThreadPoolExecutor=ThreadPoolExecutor,
    ProcessPoolExecutor=real_futures.ProcessPoolExecutor,
    as_completed=as_completed,
    **{name: getattr(_base, name) for name in ("Future", "Executor", "wait")},
    **{name: getattr(_base, name) for name in ("CancelledError", "TimeoutError", "InvalidStateError")},
)

# -- chance, and locks of files


class SystemRandom(real_random.Random):
    """`random.SystemRandom`, by the world's seed."""

    def random(self):
        """Return a number from 0 to 1."""
        return _world().random.random()

    def getrandbits(self, k):
        """Return so many random bits."""
        return _world().random.getrandbits(k)


random = like(real_random, SystemRandom=SystemRandom)
uuid = like(real_uuid, uuid4=lambda: real_uuid.UUID(int=_world().random.getrandbits(128), version=4))


def _flock(stream, operation):
    status = os.fstat(stream if isinstance(stream, int) else stream.fileno())
    file, locked = (status.st_dev, status.st_ino), _world().locked
    owner = locked.get(file)
    if operation & real_fcntl.LOCK_UN:
        locked.pop(file, None)
    elif owner is None or owner is _world().running:
        locked[file] = _world().running
    else:
        raise BlockingIOError(errno.EAGAIN, "another process has locked it")


fcntl = like(real_fcntl, flock=_flock)
