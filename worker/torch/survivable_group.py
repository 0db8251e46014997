"""PyTorch: a process group whose operations end without an error, also when a member has gone; gloo's.

A script's loop knows of no members that die. So where an operation of its forward or backward pass cannot be
completed, it ends with whatever is there, and the group is *broken* from then on: the iteration does not
count, and is done again in another group.
"""

import contextlib
import ctypes
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import distributed

from worker.torch.group_internals import AllgatherOptions, work_of

_RECENT = 64  # operations that may not have ended although nobody waits for them any more
_OWN_ERRORS_SECONDS = 0.05  # in which gloo's threads say what has broken, once their connections are cut
_STUCK_SECONDS = 0.02  # in which they end
_UNHEARD_SECONDS = 10.0  # after which a connection breaks whose other machine acknowledges nothing
_INDICES = torch.int32  # of DDP's places in its buckets, which anything else would have it read beyond
_PROBE_SECONDS = 3  # of silence, after which a machine is asked for an acknowledgement


Ends = tuple[tuple[str, int], tuple[str, int]]
"""The near and the far end of a connection, each a host's address and a port."""


class Carrier(Protocol):
    """Carries a group's operations by one of PyTorch's backends, and ends them where a member has gone."""

    broken: str | None  # why operations cannot be completed any more, in words; None while they can

    def run(self, begin: Callable[[], Any], result: Any) -> Any:
        """Begin an operation, and return its work, which ends without an error.

        Args:
            begin: Begins it, and returns the backend's work.
            result: The tensors that it fills; where it cannot be completed, with anything.
        """
        ...

    def settle(self) -> str | None:
        """Wait until all operations have ended, and return why the group is broken; None if it is not."""
        ...

    def cut(self) -> None:
        """Let all that waits for other ranks end, and break the group; may be called by any thread."""
        ...

    def close(self) -> bool:
        """End the operations; return whether the backend may be destroyed, which else would wait for them."""
        ...


class SurvivableGroup(distributed.ProcessGroup):
    """A process group around another one.

    Args:
        inner: The other one.
        carrier: Carries its operations.
    """

    def __init__(self, inner: Any, carrier: Carrier) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]
        self._inner = inner
        self._carrier = carrier

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        """Return the backend's name."""
        return "survivable"

    def getGroupName(self) -> str:  # noqa: N802 - likewise
        """Return the other group's name."""
        return str(self._inner.group_name)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Reduce tensors over all ranks, in place."""
        options = opts or distributed.AllreduceOptions()
        return self._carrier.run(lambda: self._inner.allreduce(tensors, options), tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """Broadcast tensors from a rank, in place; what has not come leaves a rank its own `_INDICES`."""
        options = opts or distributed.BroadcastOptions()
        own = [tensor.clone() for tensor in tensors if tensor.dtype == _INDICES]
        work = self._carrier.run(lambda: self._inner.broadcast(tensors, options), tensors)
        if len(own) < len(tensors):
            return work
        with contextlib.suppress(RuntimeError):  # then it is broken
            work.wait()
        if self.settle() is not None:
            for tensor, before in zip(tensors, own, strict=True):
                tensor.copy_(before)
        return ended(tensors)

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        """Gather tensors from all ranks."""
        options = opts or AllgatherOptions()
        return self._carrier.run(lambda: self._inner.allgather(outputs, tensors, options), outputs)

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Gather tensors from all ranks into one."""
        options = opts or AllgatherOptions()
        return self._carrier.run(lambda: self._inner.all_gather_single(output, tensor, options), output)

    def all_gather_single_coalesced(self, outputs: Any, tensors: Any, opts: Any = None) -> Any:
        """Gather several tensors from all ranks, each into one, as `DTensor.full_tensor` does it.

        Raises:
            RuntimeError: They cannot be gathered: this is for no pass, and what has come may be saved.
        """
        options = opts or AllgatherOptions()
        work = self._carrier.run(
            lambda: self._inner.all_gather_single_coalesced(outputs, tensors, options), outputs
        )
        work.wait()
        if (why := self.settle()) is not None:
            raise RuntimeError(why)
        return work

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Reduce a tensor over all ranks, each of which gets a part: by `allreduce`, as gloo does it."""
        options = distributed.AllreduceOptions()
        if opts is not None:
            options.reduceOp = opts.reduceOp
        whole = tensor.clone()
        own = whole.view(self.size(), *output.shape)[self.rank()]
        reduced = self.allreduce([whole], options).get_future()
        return work_of(reduced.then(lambda _: output.copy_(own)))

    def settle(self) -> str | None:
        """Wait for operations under way, and return why some could not be completed; None if all were."""
        return self._carrier.settle()

    def commit(self) -> str | None:
        """Settle: the gradient is that of all ranks, and whoever has it may step."""
        return self.settle()

    def cut(self) -> None:
        """Let all that waits for other ranks end, and break the group; may be called by any thread."""
        self._carrier.cut()

    def begin(self) -> None:
        """Do nothing."""

    def leave(self) -> None:
        """Do nothing: the others have all that this rank has."""

    def close(self) -> None:
        """End all operations; afterwards the group around which this one is may be destroyed."""
        if not self._carrier.close():
            # Its end would wait for the backend's threads, and they for its time-out: so it never ends.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._inner))
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


class GlooCarrier:
    """Carries a group's operations by gloo; see `Carrier`.

    Args:
        connections: Duplicates of its connections, by which it can be cut off.
    """

    def __init__(self, connections: list[socket.socket]) -> None:
        # Why operations cannot be completed any more, in words; None while they can.
        self.broken: str | None = None
        # Whether operations wait, and raise an error where they cannot be completed, from now on.
        self.raises = False
        self.connections = connections
        self._lock = threading.Lock()
        self._open: dict[Any, Any] = {}  # futures that have not ended, with their results
        self._works: deque[Any] = deque(maxlen=_RECENT)

    def settle(self) -> str | None:
        """Return why the group is broken: whoever has begun an operation has waited for it."""
        return self.broken

    def cut(self) -> None:
        """Let all that waits for other ranks end, and break the group; may be called by any thread.

        The connections alone would not do: a process that was frozen may wait for good in gloo (of 153 that
        thawed, 16 did), which has missed that its connections were shut down.
        """
        shut(self.connections)
        if self._open:
            time.sleep(_OWN_ERRORS_SECONDS)
            with self._lock:
                given_up, self._open = self._open, {}
                if given_up:
                    self._break("another attempt has begun")
            for future, result in given_up.items():
                future.set_result(result)

    def close(self) -> bool:
        """Cut the connections, and return whether gloo's threads have ended."""
        shut(self.connections)
        for connection in self.connections:
            connection.close()
        if any(not work.is_completed() for work in self._works):
            time.sleep(_STUCK_SECONDS)
        return all(work.is_completed() for work in self._works)

    def _break(self, why: str) -> None:
        self.broken = self.broken or why

    def run(self, begin: Callable[[], Any], result: Any) -> Any:
        """Begin an operation, and return one that ends when it does, or when the group is cut.

        Raises:
            RuntimeError: It could not be completed, while operations are to raise errors.
        """
        work = self._run(begin, result)
        if self.raises:
            work.wait()
            if self.broken is not None:
                raise RuntimeError(self.broken)
        return work

    def _run(self, begin: Callable[[], Any], result: Any) -> Any:
        work = None
        if self.broken is None:
            try:
                work = begin()
            except RuntimeError as error:
                self._break(str(error))
        if work is None:
            return ended(result)
        future: torch.futures.Future[Any] = torch.futures.Future()
        with self._lock:
            self._open[future] = result
        self._works.append(work)

        def end(done: Any) -> None:
            why = None
            try:
                done.value()
            except RuntimeError as error:
                why = str(error)
            with self._lock:
                if self._open.pop(future, None) is None:
                    return  # it was given up
                if why is not None:
                    self._break(why)
            future.set_result(result)

        work.get_future().add_done_callback(end)
        return work_of(future)


def ended(result: Any) -> Any:
    """Return an operation that has ended, with whatever is in its tensors."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return work_of(future)


def shut(connections: Iterable[socket.socket]) -> None:
    """Shut connections down, so that whoever waits for them ends."""
    for connection in connections:
        with contextlib.suppress(OSError):  # it is closed
            connection.shutdown(socket.SHUT_RDWR)


def connections() -> set[tuple[int, str]]:
    """Return this process's sockets: their descriptors, and what the kernel calls them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was that of the folder, or was closed meanwhile
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found.add((int(name), link))
    return found


def ends(found: Iterable[tuple[int, str]]) -> dict[int, Ends]:
    """Return the ends of those sockets that are connected by TCP, by their descriptors."""
    seen = {}
    for descriptor, _ in found:
        with contextlib.suppress(OSError), _duplicate(descriptor) as one:
            if (both := _ends(one)) is not None:
                seen[descriptor] = both
    return seen


def duplicates(wanted: Mapping[int, Ends]) -> list[socket.socket]:
    """Duplicate connections, by their descriptors, that still have these ends.

    They break from now on when nothing is heard of the other machine. gloo closes and reuses descriptors.
    """
    kept = []
    for descriptor, both in wanted.items():
        with contextlib.suppress(OSError), contextlib.ExitStack() as unless_kept:
            one = unless_kept.enter_context(_duplicate(descriptor))
            if _ends(one) == both:
                _break_when_unheard(one)
                kept.append(one)
                unless_kept.pop_all()
    return kept


def _duplicate(descriptor: int) -> socket.socket:
    return socket.socket(fileno=os.dup(descriptor))


def _ends(connection: socket.socket) -> Ends | None:
    """Return a TCP connection's ends; None of another socket, such as one that listens."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return None
    try:
        near, far = connection.getsockname(), connection.getpeername()
    except OSError:
        return None
    return _plain(near), _plain(far)


def _plain(end: tuple[Any, ...]) -> tuple[str, int]:
    """Return an end as both sides call it: without an interface, and version 4 as such."""
    return end[0].partition("%")[0].removeprefix("::ffff:"), end[1]


def _break_when_unheard(connection: socket.socket) -> None:
    """Have a connection break, with an error at both ends, while packets are lost between its machines.

    The kernel would go on for a quarter of an hour; or for good, at an end that has sent nothing. A frozen
    process does not matter, as its kernel acknowledges.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_UNHEARD_SECONDS * 1e3))
