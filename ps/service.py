"""A parameter server's shard on the wire: checks what comes in, feeds the jobs' shards, releases barriers.

The arithmetic is in `shard`; everything about bytes and deadlines is in `rpc`.
"""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

import torch

import idl
from batchsize_manager.synchronisation import Synchronisation
from ps.asynchronous import AsynchronousShard
from ps.backup import BackupShard
from ps.parameters import DTYPES, Group, Layout, Parameters
from ps.shard import GradientSink, Shard
from rpc import check
from rpc.errors import InvalidRequestError, NotMemberError, UnavailableError
from rpc.peer import Peer
from rpc.service import Call, Discard, Sink

log = logging.getLogger(__name__)

_wire = idl.parameter_server

_FORGET_SECONDS = 600.0  # a job that nobody is connected for is kept so long


@dataclass(frozen=True)
class ParameterServerConfig:
    """How a shard process serves.

    Attributes:
        deterministic: Whether gradients are summed in the order of their slices; see `ps.shard.Shard`.
            Only for jobs that run with BSP.
        memory_bytes: Of parameters, over all jobs. Sums and the optimiser's state come on top.

    Raises:
        ValueError: A number is out of its range.
    """

    deterministic: bool = False
    memory_bytes: int = 4 * 2**30

    def __post_init__(self) -> None:
        if self.memory_bytes < 1:
            raise ValueError(f"memory_bytes {self.memory_bytes}: must be at least 1")


@dataclass(slots=True)
class _Hosted:
    """A job's shard, who is connected for it, who was sent parameters last, and who waits for them."""

    shard: Parameters
    synchronisation: Synchronisation
    peers: set[Peer] = field(default_factory=set)
    readers: set[Peer] = field(default_factory=set)
    waiting: list[tuple[Call, int, float]] = field(default_factory=list)  # with version, and since when
    left_at: float | None = None


class _ParametersSink:
    """Takes parameters from the wire straight into a tensor."""

    def __init__(self, layout: Layout) -> None:
        self.parameters = torch.empty(layout.elements, dtype=DTYPES[layout.dtype])  # (elements,)
        self._left = self.parameters.numpy().data.cast("B")

    def get_buffer(self) -> memoryview:
        return self._left

    def advance(self, count: int) -> None:
        self._left = self._left[count:]

    def abort(self) -> None:
        """Nothing refers to the tensor yet."""


class ParameterServerService:
    """Serves `idl/parameter_server.thrift`; see `rpc.service.Service`."""

    definition = _wire.ParameterServer
    bulk_methods = frozenset({"initialise", "push"})

    def __init__(self, config: ParameterServerConfig) -> None:
        self._config = config
        self._jobs: dict[str, _Hosted] = {}
        self._handlers = {
            "open": self._open,
            "initialise": self._initialise,
            "push": self._push,
            "pull": self._pull,
            "forfeit": self._forfeit,
        }

    # -- rpc.service.Service

    def handle(self, call: Call) -> None:
        """Take a call; that of a bulk method comes when its field has arrived."""
        self._handlers[call.method](call)

    def open_sink(self, call: Call, length: int) -> Sink:
        """Where the parameters or the gradient go."""
        hosted = self._hosted(call)
        layout = hosted.shard.layout
        if length != layout.nbytes:
            raise InvalidRequestError(
                f"{call.method}: {length} bytes, but the shard's {layout.elements} elements of "
                f"{layout.dtype} take {layout.nbytes}"
            )
        if call.method == "initialise":
            if hosted.shard.initialised:
                return Discard(length)
            return _ParametersSink(layout)
        request = call.request
        worker = request.identity.worker
        if request.assignment is None:
            raise InvalidRequestError("assignment is missing")
        iteration = check.integer("iteration", request.assignment.iteration, 0)
        start = check.integer("start", request.assignment.start, 0)
        total = check.integer("total", request.assignment.total, 1)
        count = check.integer("count", request.assignment.count, 1, total)
        if hosted.shard.has_used(iteration, start, count, worker):
            return Discard(length)
        groups = _groups(request.groups) if request.groups else ()
        sink = GradientSink(hosted.shard, hosted.shard.begin(iteration, start, count, total, worker))
        if groups:
            try:
                hosted.shard.set_options(groups, worker)
            except InvalidRequestError:
                sink.abort()
                raise
        return sink

    def disconnected(self, peer: Peer) -> None:
        """Forget who waited through this connection."""
        for hosted in self._jobs.values():
            hosted.peers.discard(peer)
            hosted.readers.discard(peer)
            hosted.waiting = [entry for entry in hosted.waiting if entry[0].peer is not peer]
            if not hosted.peers and hosted.left_at is None:
                hosted.left_at = time.monotonic()

    def tick(self, now: float) -> None:
        """Drop jobs that everybody has left long ago."""
        for name, hosted in list(self._jobs.items()):
            if hosted.left_at is not None and now - hosted.left_at > _FORGET_SECONDS:
                self._drop(name)

    def stop(self) -> None:
        """Refuse everybody who waits."""
        for hosted in self._jobs.values():
            for call, _, _ in hosted.waiting:
                call.fail(UnavailableError("the parameter server is shutting down"))
            hosted.waiting.clear()

    # -- methods

    def _open(self, call: Call) -> None:
        request = _request(call)
        job_name, worker, _ = check.identity(request.identity)
        dtype = check.text("dtype", request.dtype)
        optimizer = check.text("optimizer", request.optimizer)
        layout = Layout(dtype, optimizer, _groups(request.groups))
        synchronisation = _synchronisation(request.synchronisation)
        hosted = self._jobs.get(job_name)
        if hosted is None:
            shard = self._make_shard(layout, synchronisation)
            self._make_room(layout.nbytes)
            hosted = self._jobs[job_name] = _Hosted(shard, synchronisation)
            log.info("job %s: %d %s parameters, %s", job_name, layout.elements, dtype, optimizer)
        elif _shape(hosted.shard.layout) != _shape(layout):
            raise InvalidRequestError(
                f"job {job_name!r} holds {_shape(hosted.shard.layout)}, "
                f"but {worker!r} has {_shape(layout)}: is it the same model and optimiser?"
            )
        elif hosted.synchronisation != synchronisation:
            raise InvalidRequestError(
                f"job {job_name!r} runs with {hosted.synchronisation}, but {worker!r} wants "
                f"{synchronisation}: it must be what the manager answered to join"
            )
        hosted.shard.opened(worker, layout.groups)
        self._connect(hosted, call.peer)
        call.reply(
            _wire.OpenReply(
                identity=request.identity,
                initialised=hosted.shard.initialised,
                version=hosted.shard.version,
            )
        )

    def _initialise(self, call: Call) -> None:
        hosted = self._hosted(call)
        version = check.integer("version", call.request.version, 0)
        accepted = isinstance(call.sink, _ParametersSink) and hosted.shard.initialise(
            call.sink.parameters, version
        )
        call.reply(_wire.InitialiseReply(identity=call.request.identity, accepted=accepted))
        self._release(hosted)

    def _push(self, call: Call) -> None:
        hosted = self._hosted(call)
        if isinstance(call.sink, GradientSink):
            call.sink.close()
        iteration = call.request.assignment.iteration
        call.reply(_wire.PushReply(identity=call.request.identity, iteration=iteration))
        # Once the answer is out: the step must not count as the last worker's processing time.
        asyncio.get_running_loop().call_soon(self._step, hosted)

    def _pull(self, call: Call) -> None:
        hosted = self._hosted(call)
        version = check.integer("version", call.request.version, -1)
        hosted.waiting.append((call, version, time.monotonic()))
        self._release(hosted)

    def _forfeit(self, call: Call) -> None:
        request = _request(call)
        hosted = self._hosted(call)
        iteration = check.integer("iteration", request.iteration, 0)
        start = check.integer("start", request.start, 0)
        total = check.integer("total", request.total, 1)
        count = check.integer("count", request.count, 0, total)
        hosted.shard.forfeit(iteration, start, count, total)
        self._step(hosted)
        call.reply(_wire.ForfeitReply(identity=request.identity, iteration=iteration))

    # -- within

    def _hosted(self, call: Call) -> _Hosted:
        job_name, worker, _ = check.identity(_request(call).identity)
        hosted = self._jobs.get(job_name)
        if hosted is None:
            raise NotMemberError(f"{call.method}: {worker!r} has not opened job {job_name!r}")
        self._connect(hosted, call.peer)
        return hosted

    def _connect(self, hosted: _Hosted, peer: Peer) -> None:
        hosted.peers.add(peer)
        hosted.left_at = None

    def _step(self, hosted: _Hosted) -> None:
        """Step if it is time for it, once for each gradient in the asynchronous modes."""
        if not hosted.shard.complete:
            return
        if any(peer.is_sending() for peer in hosted.readers):
            # The parameters' memory may still be on its way to a slow reader: leave it to that one.
            hosted.shard.detach_parameters()
        hosted.readers.clear()
        while hosted.shard.complete:
            hosted.shard.step()
        self._release(hosted)

    def _release(self, hosted: _Hosted) -> None:
        """Answer the pulls whose version is there."""
        shard = hosted.shard
        if not shard.initialised:
            return
        still_waiting = []
        for call, version, since in hosted.waiting:
            if shard.version < version:
                still_waiting.append((call, version, since))
                continue
            reply = _wire.PullReply(
                identity=call.request.identity,
                version=shard.version,
                waited=time.monotonic() - since,
                parameters=b"",
            )
            call.reply(reply, bulk=shard.parameters())
            hosted.readers.add(call.peer)
        hosted.waiting = still_waiting

    def _make_shard(self, layout: Layout, synchronisation: Synchronisation) -> Parameters:
        if self._config.deterministic and synchronisation.mode != "bsp":
            raise InvalidRequestError(
                f"synchronisation {synchronisation.mode!r}: this parameter server was started with "
                f"--deterministic, which only bsp can be"
            )
        if synchronisation.asynchronous:
            return AsynchronousShard(layout)
        if synchronisation.replicas_to_aggregate is not None:
            return BackupShard(layout, synchronisation.replicas_to_aggregate)
        return Shard(layout, self._config.deterministic)

    def _make_room(self, nbytes: int) -> None:
        """Drop jobs that everybody has left, oldest first, until `nbytes` more are allowed."""
        left = sorted(
            (hosted.left_at, name) for name, hosted in self._jobs.items() if hosted.left_at is not None
        )
        while self._used() + nbytes > self._config.memory_bytes and left:
            self._drop(left.pop(0)[1])
        if self._used() + nbytes > self._config.memory_bytes:
            raise InvalidRequestError(
                f"parameters of {nbytes} bytes: this shard may hold {self._config.memory_bytes}, "
                f"of which {self._used()} are in use; use more shards, or allow it more"
            )

    def _used(self) -> int:
        return sum(hosted.shard.layout.nbytes for hosted in self._jobs.values())

    def _drop(self, name: str) -> None:
        log.info("job %s: dropped, everybody has left", name)
        del self._jobs[name]


def _request(call: Call) -> Any:
    if call.request is None:
        raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
    return call.request


def _synchronisation(wire: Any) -> Synchronisation:
    """As it came over the wire; nothing means BSP."""
    if wire is None:
        return Synchronisation()
    try:
        return Synchronisation(
            check.text("mode", wire.mode),
            None if wire.staleness is None else check.integer("staleness", wire.staleness, 0),
            None
            if wire.replicas_to_aggregate is None
            else check.integer("replicas_to_aggregate", wire.replicas_to_aggregate, 1),
        )
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def _groups(groups: Any) -> tuple[Group, ...]:
    if not isinstance(groups, list) or not 1 <= len(groups) <= 10_000:
        raise InvalidRequestError("groups: a list of 1 to 10000 parameter groups is needed")
    result = []
    for group in groups:
        elements = check.integer("elements", group.elements, 0, 2**40)
        options = {
            check.text("option", key): check.number(f"option {key}", value, -1e30, 1e30)
            for key, value in (group.options or {}).items()
        }
        result.append(Group(elements, options))
    return tuple(result)


def _shape(layout: Layout) -> str:
    sizes = ", ".join(str(group.elements) for group in layout.groups)
    return f"{layout.optimizer} on groups of {sizes} elements of {layout.dtype}"
