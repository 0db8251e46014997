"""PyTorch: a process group of gloo or NCCL that is formed anew in each attempt of a job, under one model."""

import contextlib
import datetime
import hashlib
import json
import logging
import os
import socket
import threading
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Protocol

import psutil
import torch
from torch import distributed

from idl.errors import UnavailableError
from idl.exchange import Seat
from worker.daemon_thread import Apart, in_daemon
from worker.exchanges.all_reduce import AllReduce, GroupTimes
from worker.torch.gloo_connection import connected_apart
from worker.torch.group_internals import PrefixStore, TCPStore, number_from_zero, set_timeouts
from worker.torch.kept_state import KeptState
from worker.torch.loader import Loader
from worker.torch.reaching import reach, unreached
from worker.torch.survivable_group import Ends, SurvivableGroup, connections, duplicates, ends, shut
from worker.torch.training_state import TrainingState

log = logging.getLogger(__name__)

_FORM_SECONDS = datetime.timedelta(seconds=30)  # once all members are there
_WAIT_SECONDS = datetime.timedelta(minutes=30)  # for others, as PyTorch; a straggler is no fault

BACKENDS = {"gloo", "nccl"}  # of which groups are formed; all but gloo's are broken by aborting them


class Group(Protocol):
    """A process group that a model is trained in."""

    def settle(self) -> str | None:
        """Wait for operations under way, and return why some could not be completed; None if all were."""
        ...

    def cut(self) -> None:
        """Let nothing wait for members that are gone; may be called by any thread."""
        ...

    def close(self) -> None:
        """End all operations; afterwards the group may be destroyed."""
        ...

    def begin(self) -> None:
        """Begin a batch, of which `settle` is the end."""
        ...

    def commit(self) -> str | None:
        """Return why the optimiser may not step with the batch's gradient; None if it may."""
        ...

    def leave(self) -> None:
        """Let the other members have what they need of this one, before it goes to another group or leaves.

        Raises:
            InvalidRequestError: A part of the state is gone.
        """
        ...


class Wrapper(ABC):
    """What a model is wrapped in, so that ranks train it together."""

    def leave(self) -> None:  # noqa: B027 - not all need it
        """Take the model out of its group, which has been closed."""

    @abstractmethod
    def group(self, inner: Any, connections: list[socket.socket], members: Mapping[str, str]) -> Group:
        """Return a group for the model.

        Args:
            inner: PyTorch's.
            members: Addresses of its members' stores, by name.
        """

    def connect(self, seconds: datetime.timedelta) -> None:  # noqa: B027 - not all need it
        """Form what groups the model needs within the default one.

        Args:
            seconds: The time-out of their operations.
        """

    def enter(self, group: Any) -> None:  # noqa: B027 - not all need it
        """Wrap the model in a group, before it has the state that all members have."""

    def complete(
        self, attempt: int, group: distributed.ProcessGroup, apart: Apart, *, lacks: bool
    ) -> AbstractContextManager[bool]:
        """Let whoever has a part of the newest state have all of it.

        Args:
            group: As of `TrainingState.pass_on`, which follows within the context.
            apart: Likewise.
            lacks: Likewise.

        Returns:
            A context; once it ends without an error, this rank has the state. Its value is whether parts were
            sent or received.

        Raises:
            InvalidRequestError: A part is gone.
        """
        return nullcontext(enter_result=False)

    @abstractmethod
    def begin(self) -> None:
        """Make the model ready to be trained, now that it has that state."""


class FormedGroup:
    """The process group of a model, as the manager has it formed.

    Args:
        loader: The loader of the job's samples.
        wrapper: What it is wrapped in.
        backends: The backends that the script has chosen, by types of devices.
        group: The group that the script has put the model into.
    """

    def __init__(
        self,
        loader: Loader,
        model: torch.nn.Module,
        wrapper: Wrapper,
        backends: str,
        state: TrainingState,
        group: Group | None = None,
    ) -> None:
        self._session = loader.session
        self._model = model
        self._wrapper = wrapper
        self._state = state
        self._kept = KeptState(loader, state)
        names = {one.partition(":")[2] for one in backends.split(",")}
        # By its one name it is the groups' default backend, without which PyTorch warns at each one's end.
        self._backends = names.pop() if len(names) == 1 else backends
        self._by_gloo = backend_for(next(model.parameters()).device, backends) == "gloo"
        self._servers: dict[str, TCPStore] = {}  # by the host at which each is reached
        self._address = ""  # at which others reach it
        self._members: dict[str, str] = {}  # addresses of the present attempt's members, by name
        self._lock = threading.Condition()  # of what follows; notified when an attempt is over
        self._group = group
        self._attempt = -1  # that the group is of
        self._over = 0  # attempts below this are over
        self._gathering: list[socket.socket] = []  # duplicates of the connection at which members gather

    def let(self, exchange: AllReduce) -> None:
        """Let the manager have groups formed by this object, before its session joins."""
        exchange.form_groups_by(self)
        self._session.before_join.append(self._kept.find)
        self._session.before_batch.append(exchange.form_group)

    def settle(self) -> str | None:
        """Wait for the device, and return why the iteration under way does not count; None where it does."""
        return None if self._group is None else self._group.settle()

    def commit(self) -> str | None:
        """Return why the optimiser may not step with the batch's gradient; None if it may."""
        return None if self._group is None else self._group.commit()

    def cut(self, attempt: int) -> None:
        """End all waits for other members in groups of earlier attempts than this; called by any thread."""
        with self._lock:
            self._over = max(self._over, attempt)
            self._lock.notify_all()
            group, gathering = self._group, self._gathering
            if self._attempt >= attempt:
                return
            shut(gathering)
        if group is not None:
            group.cut()

    def begin_batch(self) -> None:
        """Go back to the state before a batch that did not count; else note the state before this one."""
        if self.settle() is None:
            self._state.note()
        else:
            self._state.go_back()
        if self._group is not None:
            self._group.begin()

    def report_step(self) -> None:
        """Report the iteration, whose gradient was reduced, before the optimiser steps with it."""
        exchange = self._session.exchange
        if isinstance(exchange, AllReduce) and exchange.is_weighted:
            self._session.report_before_step()

    def skip_step(self) -> None:
        """Note what else the script will move in a batch that does not count; and drop its gradients."""
        self._state.note_moving()
        for parameter in self._model.parameters():
            parameter.grad = None

    def leave(self) -> None:
        """Let the other members have what they need of this one, before it goes to another group or leaves.

        Raises:
            InvalidRequestError: A part of the state is gone.
        """
        if self._group is not None:
            self._group.leave()

    def serve(self, host: str) -> str:
        """Serve a store for as long as this process lives, and return its address, HOST:PORT.

        Args:
            host: This machine's address as others reach it.
        """
        if host not in self._servers:
            own, listener = _listener(host)
            # PyTorch would have it listen at all addresses.
            self._servers[host] = TCPStore(
                own,
                listener.getsockname()[1],
                None,
                is_master=True,
                timeout=_FORM_SECONDS,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            _use_interface_of(host)
        port = self._servers[host].port
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self._address

    def form(self, attempt: int, seat: Seat, has_state: Callable[[], None]) -> GroupTimes:
        """Form the group of an attempt, wrap the model anew, and have all members at the same state.

        Args:
            seat: This worker's place in the group.
            has_state: Called once this worker has all of the state; until then it has what it had before.

        Returns:
            What its parts took.

        Raises:
            UnavailableError: The group cannot be formed, as where a member has died since.
            InvalidRequestError: The members' states differ nevertheless.
        """
        begun = time.perf_counter()
        try:
            group = self._connect(attempt, seat)
            assert group is not None
            connected = time.perf_counter()
            apart = partial(self._apart, attempt)
            if not seat.lacks:
                self._kept.take()
            with self._wrapper.complete(attempt, group, apart, lacks=seat.lacks) as carried:
                if seat.source is not None:
                    self._state.pass_on(seat.source, group, apart, lacks=seat.lacks)
            sent = connected if seat.source is None and not carried else time.perf_counter()
            has_state()
            self._kept.forget()
            self._state.compare(group, apart)
            if not seat.keep:  # else the model stays whole, for `keep`
                self._wrapper.begin()
                if self._group is not None:
                    self._group.begin()
        except RuntimeError as error:
            raise UnavailableError(
                f"the group of {seat.size} workers for attempt {attempt} could not be formed: {error}"
                f"{self._name_unreached(attempt)}"
            ) from error
        compared = time.perf_counter()
        set_timeouts(_WAIT_SECONDS, but=SurvivableGroup)
        times = GroupTimes(connected - begun, sent - connected, compared - sent)
        self._session.log.of(__name__).info(
            "attempt %d: rank %d of %d, met at %s; formed in %.0f ms, state %.0f ms, compared %.0f ms",
            attempt,
            seat.rank,
            seat.size,
            seat.store,
            times.connect * 1e3,
            times.state * 1e3,
            times.compare * 1e3,
        )
        return times

    def keep(self) -> None:
        """Write the state with which this worker has come into a group that is formed for it."""
        self._kept.write()

    def _connect(self, attempt: int, seat: Seat) -> distributed.ProcessGroup | None:
        """Form the group, wrap the model for it, and return that of gloo's in which the state is passed on.

        It is another one where gradients are reduced by NCCL, which takes no tensors of the CPU's, and does
        not say that a tensor has come.
        """
        self._members = {}
        for parameter in self._model.parameters():
            parameter.grad = None  # which may be a view of the wrapper's buckets
        with self._lock:
            before, self._group, self._attempt = self._group, None, attempt
        if before is not None:
            before.close()
        self._wrapper.leave()
        if distributed.is_initialized():
            distributed.destroy_process_group()
        store = self._gather(attempt, seat)
        earlier = connections()
        number_from_zero()
        with connected_apart(partial(self._apart, attempt)):
            distributed.init_process_group(
                self._backends,
                store=store,
                rank=seat.rank,
                world_size=seat.size,
                timeout=_FORM_SECONDS,
            )
            inner = distributed.group.WORLD
            assert inner is not None
            beside = inner if self._by_gloo else distributed.new_group(backend="gloo", timeout=_FORM_SECONDS)
            self._wrapper.connect(_FORM_SECONDS)
        new = ends(connections() - earlier)
        shared = self._apart(attempt, _shared, new, store, seat)
        with self._lock:
            found = duplicates(shared)
            self._group = group = self._wrapper.group(inner, found, self._members)
            self._check_not_over(attempt)
        self._wrapper.enter(group)
        with self._lock:
            gathering, self._gathering = self._gathering, []
        for connection in gathering:  # NCCL's members meet by way of the store in the first operation
            connection.close()
        if (why := group.settle()) is not None:
            raise UnavailableError(f"the group of attempt {attempt} has broken: {why}")
        return beside

    def _gather(self, attempt: int, seat: Seat) -> PrefixStore:
        """Wait at the group's store until all members are there, and return it.

        They were there when the manager decided on the group, but one may have an epoch's evaluation to do
        before its next batch, or die: so this may take long, and is ended by `cut`.
        """
        name, _, number = seat.store.rpartition(":")
        host, port = name.strip("[]"), int(number)
        try:
            # TCPStore would try for a minute or more, and not say that nobody listens.
            reach(host, port, _FORM_SECONDS.total_seconds(), lambda: self._check_not_over(attempt))
            stores = {at[:2] for *_, at in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
            earlier = connections()
            options = {"is_master": False, "timeout": _FORM_SECONDS, "wait_for_workers": False}
            whole = self._apart(attempt, TCPStore, host, port, None, **options)
        except (RuntimeError, OSError) as error:
            raise UnavailableError(
                f"rank 0 of attempt {attempt} cannot be reached at {seat.store} ({error}); if it lives, "
                f"start it with `evenpace worker --host`, its address as other workers reach it"
            ) from error
        with self._lock:
            new = ends(connections() - earlier)
            self._gathering = duplicates({one: both for one, both in new.items() if both[1] in stores})
            self._check_not_over(attempt)
        store = PrefixStore(f"attempt-{attempt}", whole)
        own = f"{self._address} {self._session.config.worker}"
        try:
            told = self._apart(attempt, _exchanged, "member", own, store, seat, _WAIT_SECONDS)
        except BaseException:  # such as Ctrl-C
            shut(self._gathering)
            raise
        members = (one.decode().partition(" ") for one in told)
        self._members = {name: address for address, _, name in members}
        return store

    def _apart(self, attempt: int, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function that waits for other members in a thread, which is left behind with the attempt.

        Stores and gloo go on trying where a member dies while they connect to it; and gloo may miss that its
        connections were shut down.
        """
        call = in_daemon(function, *arguments, **options)

        def notify(_: "Future[Any]") -> None:
            with self._lock:
                self._lock.notify_all()

        call.add_done_callback(notify)
        with self._lock:
            self._lock.wait_for(lambda: call.done() or self._over > attempt)
            if not call.done():
                self._check_not_over(attempt)
        return call.result()

    def _name_unreached(self, attempt: int) -> str:
        """Return the members that cannot be reached from here, in words; nothing if the attempt is over."""
        try:
            found = unreached(self._members, lambda: self._check_not_over(attempt))
        except UnavailableError:
            return ""
        return f"; {self._session.config.worker} cannot reach {', '.join(found)}" if found else ""

    def _check_not_over(self, attempt: int) -> None:
        if self._over > attempt:
            raise UnavailableError(f"attempt {attempt} is over")


def _listener(host: str) -> tuple[str, socket.socket]:
    """Return an address of this machine, and a listener there: at that by which others reach it.

    Where that is none of this machine's, as behind a translation of addresses, it listens at all.
    """
    family, *_, at = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    own = str(at[0])
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if own != host != "localhost" and own.startswith("127."):  # what a machine calls itself
            raise OSError(f"{host} is {own} here")
        listener.bind(at)
    except OSError as error:
        log.warning(
            "the store of process groups listens at all addresses, as this machine cannot at %s (%s); let no "
            "strangers reach its port",
            host,
            error,
        )
        own = "::1" if family == socket.AF_INET6 else "127.0.0.1"
        listener.bind(("", 0))
    listener.listen(socket.SOMAXCONN)
    return own, listener


def _exchanged(
    what: str, own: str, store: PrefixStore, seat: Seat, seconds: datetime.timedelta
) -> list[bytes]:
    """Tell all members something, wait until they have done so, and return what they have told, by rank."""
    store.set(f"{what}-{seat.rank}", own)
    keys = [f"{what}-{rank}" for rank in range(seat.size)]
    store.wait(keys, seconds)
    return store.multi_get(keys)


def _shared(new: Mapping[int, Ends], store: PrefixStore, seat: Seat) -> dict[int, Ends]:
    """Return those of new connections that another member of the group has the other end of, also as new.

    The script's other threads connect to whatever they like meanwhile, also on a member's machine.
    """

    def mark(near: tuple[str, int], far: tuple[str, int]) -> str:
        return hashlib.blake2b(f"{near} {far}".encode(), digest_size=6).hexdigest()

    own = json.dumps([mark(*both) for both in new.values()])
    told = _exchanged("connections", own, store, seat, _FORM_SECONDS)
    theirs = {one for rank, text in enumerate(told) if rank != seat.rank for one in json.loads(text)}
    return {descriptor: both for descriptor, both in new.items() if mark(*reversed(both)) in theirs}


def backend_for(device: torch.device, backends: str) -> str | None:
    """Return the backend for a device, of those by types of devices such as `cpu:gloo,cuda:nccl`."""
    return dict(one.split(":") for one in backends.split(",")).get(device.type)


class _NoStepError(Exception):
    """The gradient that a closure has computed does not count."""


def guard_step(optimizer: torch.optim.Optimizer, group: FormedGroup) -> None:
    """Let an optimiser take no step with the gradient of a batch that does not count."""
    own = optimizer.step

    # A plain function, bound: learning-rate schedulers unwrap and wrap the method.
    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        def evaluate() -> Any:
            assert closure is not None
            loss = closure()
            if group.commit() is not None:
                raise _NoStepError
            return loss

        if closure is not None:
            with contextlib.suppress(_NoStepError):
                return own(evaluate)
            return group.skip_step()
        if group.commit() is not None:
            return group.skip_step()
        group.report_step()
        return own()

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]  # else those made before would warn
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


def _use_interface_of(host: str) -> None:
    """Have gloo tell other members the address by which this machine reaches the manager."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    for interface, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] == host for address in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            return
