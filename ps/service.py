"""A parameter server's shard on the wire: checks what comes in, feeds the jobs' shards, releases barriers.

The arithmetic is in `shard`; everything about bytes and deadlines is in `rpc`.
"""

import asyncio
import contextlib
import time
from concurrent.futures import Future
from typing import Any, Protocol

import idl
from idl import check
from idl.errors import InvalidRequestError, NotMemberError, RewoundError, UnavailableError
from idl.layout import Layout
from idl.translation import read_assignment, read_groups, read_synchronisation, read_tensors
from ps.counters import TimedSink
from ps.jobs import Jobs, ParameterServerConfig
from ps.model import Model
from ps.optimizers import check_optimizer
from ps.shard_job import ShardJob, TensorSink
from rpc.peer import Peer
from rpc.service import Call, Discard, Sink

_wire = idl.parameter_server

_SETTLE_SECONDS = 1.0  # for which a fence waits for a checkpoint that is being written


class Observer(Protocol):
    """Who wants to know what a shard does; times are of the monotonic clock in nanoseconds."""

    def pushed(self, hosted: ShardJob, request: Any, began: int) -> None:
        """A gradient has come as a whole that was needed."""

    def stepped(self, hosted: ShardJob, version: int, began: int) -> None:
        """The optimiser has made a step from this version on."""


class ParameterServerService:
    """Serves `idl/parameter_server.thrift`; see `rpc.service.Service`.

    Attributes:
        observer: Told of what is done, if it is set.
    """

    definition = _wire.ParameterServer
    bulk_methods = frozenset({"initialise", "push"})

    def __init__(self, config: ParameterServerConfig) -> None:
        self.observer: Observer | None = None
        self._jobs = Jobs(config)
        self._handlers = {
            "open": self._open,
            "initialise": self._initialise,
            "push": self._push,
            "pull": self._pull,
            "fence": self._fence,
            "rewind": self._rewind,
            "state": self._state,
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
            _check_initialise(hosted, call)
            if hosted.shard.initialised:
                return Discard(length)
            return self._stage(hosted, call) if call.request.slot is not None else TensorSink(layout)
        return self._open_push(hosted, call, length)

    def disconnected(self, peer: Peer) -> None:
        """Forget who waited through this connection."""
        for hosted in self._jobs:
            hosted.peers.discard(peer)
            hosted.readers.discard(peer)
            hosted.waiting = [entry for entry in hosted.waiting if entry[0].peer is not peer]
            hosted.fences = [entry for entry in hosted.fences if entry[0].peer is not peer]
            if not hosted.peers and hosted.left_at is None:
                hosted.left_at = time.monotonic()

    def tick(self, now: float) -> None:
        """Have those ask again who have waited for long, and drop jobs that everybody has left long ago."""
        for hosted in self._jobs:
            with hosted.sweeping:
                hosted.send_away(now)
                self._answer_fences(hosted, now)
        self._jobs.forget(now)

    def stop(self) -> None:
        """Refuse everybody who waits, and write down where the jobs are."""
        for hosted in self._jobs:
            held = [entry[0] for entry in hosted.waiting] + [entry[0] for entry in hosted.fences]
            for call in held:
                call.fail(UnavailableError("the parameter server is shutting down"))
            hosted.waiting.clear()
            hosted.fences.clear()
        self._jobs.close()

    @property
    def jobs(self) -> list[ShardJob]:
        """The jobs that are held; from any thread."""
        return self._jobs.all

    # -- methods

    def _open(self, call: Call) -> None:
        request = _request_of(call)
        job_name, worker, _ = check.identity(request.identity)
        layout = Layout(
            check.text("dtype", request.dtype),
            check.text("optimizer", request.optimizer),
            read_groups(request.groups),
        )
        check_optimizer(layout)
        synchronisation = read_synchronisation(request.synchronisation)
        tensors = read_tensors(request.tensors)
        model = Model(worker, tensors) if tensors else None
        hosted = self._jobs.find(job_name)
        if hosted is None:
            hosted = self._jobs.add(job_name, layout, synchronisation, model)
        else:
            hosted.check_same(worker, model, layout, synchronisation)
        hosted.shard.opened(worker, layout.groups)
        hosted.model = hosted.model or model
        self._connect(hosted, call.peer)
        call.reply(
            _wire.OpenReply(
                identity=request.identity,
                initialised=hosted.shard.initialised,
                version=hosted.shard.version,
                attempt=hosted.attempt,
                instance=hosted.instance,
                restored=hosted.is_restored or None,
            )
        )

    def _initialise(self, call: Call) -> None:
        hosted = self._hosted(call)
        version = check.integer("version", call.request.version, 0)
        attempt = _check_initialise(hosted, call)
        accepted = isinstance(call.sink, TensorSink) and not hosted.shard.initialised
        if isinstance(call.sink, TensorSink) and accepted and call.request.slot is None:
            _, worker, incarnation = check.identity(call.request.identity)
            hosted.initialise(worker, incarnation, call.sink.tensor, version, attempt)
            self._step_when_copied(hosted)
        call.reply(_wire.InitialiseReply(identity=call.request.identity, accepted=accepted))
        self._release(hosted)

    def _push(self, call: Call) -> None:
        hosted = self._hosted(call)
        _check_attempt(hosted, call, call.request.assignment.attempt)  # it may be another by now
        hosted.tally.pushed += hosted.shard.layout.nbytes
        if isinstance(call.sink, TimedSink):
            call.sink.close()
            hosted.tally.pushes += 1
            if self.observer is not None:
                self.observer.pushed(hosted, call.request, call.sink.began)
        else:
            hosted.tally.duplicates += 1
        if hosted.store and call.request.kept is not None:
            hosted.store.keep(check.integer("kept", call.request.kept, 0))
        call.reply(
            _wire.PushReply(
                identity=call.request.identity,
                iteration=call.request.assignment.iteration,
                checkpoint=max(hosted.checkpoints, default=None),
            )
        )
        # Once the answer is out: the step must not count as the last worker's processing time.
        asyncio.get_running_loop().call_soon(self._step, hosted)

    def _pull(self, call: Call) -> None:
        request = _request_of(call)
        until = call.since + check.wait(request.wait)
        hosted = self._hosted(call)
        version = check.integer("version", request.version, -1)
        if request.slot is not None:
            check.text("slot", request.slot)
        if hosted.shard.initialised:  # else it waits for an attempt to begin here
            _check_reader(hosted, call)
        if hosted.ask(request.identity.worker, version, settled=bool(request.settled)):
            self._step(hosted)
        hosted.waiting.append((call, version, until))
        self._release(hosted)

    def _fence(self, call: Call) -> None:
        job_name, _, _ = check.identity(_request_of(call).identity)
        attempt = check.integer("attempt", call.request.attempt, 0)
        if self._jobs.find(job_name) is None:  # nothing to fence, and nothing to go back to
            call.reply(_wire.FenceReply(call.request.identity, initialised=False, version=0, checkpoints=[]))
            return
        hosted = self._hosted(call)
        self._step(hosted)
        if hosted.fence(attempt):
            waiting, hosted.waiting = hosted.waiting, []
            for other, _, _ in waiting:
                other.fail(RewoundError(f"attempt {attempt} has begun", attempt))
        hosted.fences.append((call, time.monotonic() + _SETTLE_SECONDS))
        self._answer_fences(hosted, time.monotonic())

    def _rewind(self, call: Call) -> None:
        request = _request_of(call)
        if request.anew and self._jobs.find(check.identity(request.identity)[0]) is None:
            call.reply(_wire.RewindReply(identity=request.identity, instance=""))  # it has none to forget
            return
        hosted = self._hosted(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        hosted.check_attempt(call.request.identity.worker, attempt)
        version = check.integer("version", call.request.version, 0)
        if hosted.fenced and hosted.shard.complete and version == hosted.shard.version + 1:
            if hosted.is_copying:
                raise UnavailableError(f"version {hosted.shard.version} is being copied for its checkpoint")
            self._take_steps(hosted)
        if request.anew:
            hosted.forget(version)
        else:
            hosted.rewind(version)
        call.reply(_wire.RewindReply(identity=call.request.identity, instance=hosted.instance))
        self._release(hosted)

    def _state(self, call: Call) -> None:
        shard = self._hosted(call).shard
        slots = shard.slots()
        call.reply(_wire.StateReply(identity=call.request.identity, steps=shard.steps, slots=slots))

    def _forfeit(self, call: Call) -> None:
        request = _request_of(call)
        hosted = self._hosted(call)
        iteration = check.integer("iteration", request.iteration, 0)
        start = check.integer("start", request.start, 0)
        total = check.integer("total", request.total, 1)
        count = check.integer("count", request.count, 0, total)
        hosted.shard.forfeit(iteration, start, count, total)
        self._step(hosted)
        call.reply(_wire.ForfeitReply(identity=request.identity, iteration=iteration))

    # -- within

    def _stage(self, hosted: ShardJob, call: Call) -> TensorSink:
        """Where a slot of the optimiser's state goes, which takes as much memory as the parameters."""
        _, worker, incarnation = check.identity(call.request.identity)
        slot = check.text("slot", call.request.slot)
        steps = check.integer("steps", call.request.steps, 0)
        self._jobs.make_room(hosted.shard.layout.nbytes)
        return hosted.stage(worker, incarnation, slot, steps)

    def _open_push(self, hosted: ShardJob, call: Call, length: int) -> Sink:
        """Where a gradient goes."""
        request = call.request
        worker = request.identity.worker
        part = read_assignment(request.assignment)
        check.integer("count", part.count, 1, part.total)
        _check_attempt(hosted, call, part.attempt)
        if hosted.fenced:
            raise UnavailableError(f"nobody has said yet from which version attempt {hosted.attempt} goes on")
        hosted.shared = bool(request.shared) and hosted.synchronisation.mode == "bsp"
        if hosted.shard.has_used(part, worker):
            return Discard(length)
        groups = read_groups(request.groups) if request.groups else ()
        contribution = hosted.shard.begin(part, worker)
        sink = TimedSink(hosted.shard, contribution, hosted.tally)
        if groups:
            try:
                hosted.shard.set_options(contribution, groups)
            except InvalidRequestError:
                sink.abort()
                raise
        return sink

    def _hosted(self, call: Call) -> ShardJob:
        job_name, worker, _ = check.identity(_request_of(call).identity)
        hosted = self._jobs.find(job_name)
        if hosted is None:
            said = f"{call.method}: {worker!r} has not opened job {job_name!r}"
            if getattr(call.request, "instance", None) is not None:
                raise RewoundError(f"{said} since this parameter server was started", 0)
            raise NotMemberError(said)
        self._connect(hosted, call.peer)
        return hosted

    def _connect(self, hosted: ShardJob, peer: Peer) -> None:
        hosted.peers.add(peer)
        hosted.left_at = None

    def _step(self, hosted: ShardJob) -> None:
        """Step if it is time for it."""
        if hosted.is_due:
            self._take_steps(hosted)

    def _take_steps(self, hosted: ShardJob) -> None:
        """Step with what is complete, once for each gradient in the asynchronous modes."""
        if any(peer.is_sending() for peer in hosted.readers):
            # The parameters' memory may still be on its way to a slow reader: leave it to that one.
            hosted.shard.detach_parameters()
        hosted.readers.clear()
        while hosted.shard.complete:
            began, version = time.monotonic_ns(), hosted.shard.version
            hosted.shard.step()
            hosted.tally.steps.add((time.monotonic_ns() - began) / 1e9)
            if self.observer is not None:
                self.observer.stepped(hosted, version, began)
        self._release(hosted)
        hosted.stepped()  # before anything else can come, but after the answers that others wait for
        self._step_when_copied(hosted)

    def _step_when_copied(self, hosted: ShardJob) -> None:
        """Have the next step taken once a checkpoint has tensors of its own, if it is due by then."""
        if not hosted.is_copying:
            return
        loop = asyncio.get_running_loop()

        def copied(_: "Future[None]") -> None:
            with contextlib.suppress(RuntimeError):  # the service has stopped
                loop.call_soon_threadsafe(self._step, hosted)

        assert hosted.copying is not None
        hosted.copying.add_done_callback(copied)

    def _answer_fences(self, hosted: ShardJob, now: float) -> None:
        """Answer the fences, once the checkpoint that is being written counts, or the disk takes too long."""
        writing = hosted.store is not None and hosted.store.is_writing
        ready = [call for call, until in hosted.fences if not writing or now >= until]
        hosted.fences = [(call, until) for call, until in hosted.fences if call not in ready]
        shard = hosted.shard
        for call in ready:
            call.reply(
                _wire.FenceReply(
                    identity=call.request.identity,
                    initialised=shard.initialised,
                    version=shard.version,
                    checkpoints=list(hosted.checkpoints),
                    complete=shard.complete or None,
                )
            )

    def _release(self, hosted: ShardJob) -> None:
        """Answer the pulls whose version is there."""
        shard = hosted.shard
        if not shard.initialised or hosted.fenced:
            return
        still_waiting = []
        for entry in hosted.waiting:
            call, version, _ = entry
            if shard.version < version:
                still_waiting.append(entry)
                continue
            slot = call.request.slot
            try:
                _check_reader(hosted, call)
                shard.check_options(call.request.identity.worker)
                values = shard.parameters() if slot is None else shard.slot(slot)
            except (InvalidRequestError, RewoundError) as error:
                call.fail(error)
                continue
            reply = _wire.PullReply(
                identity=call.request.identity,
                version=shard.version,
                waited=time.monotonic() - call.since,
                parameters=b"",
            )
            call.reply(reply, bulk=values)
            hosted.tally.pulls += 1
            hosted.tally.pulled += values.nbytes
            hosted.readers.add(call.peer)
        hosted.waiting = still_waiting


def _request_of(call: Call) -> Any:
    """A call's request."""
    if call.request is None:
        raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
    return call.request


def _check_attempt(hosted: ShardJob, call: Call, attempt: int | None) -> None:
    """See that the caller is in the job's attempt, and relies on this process; stock clients need not say."""
    attempt = 0 if attempt is None else check.integer("attempt", attempt, 0)
    hosted.check_attempt(call.request.identity.worker, attempt, call.request.instance)


def _check_reader(hosted: ShardJob, call: Call) -> None:
    """The same for a pull, unless it is of somebody who only looks on."""
    if call.request.version >= 0 or call.request.attempt is not None:
        _check_attempt(hosted, call, call.request.attempt)


def _check_initialise(hosted: ShardJob, call: Call) -> int:
    """The attempt that begins with the caller's parameters, which no later one may have fenced off."""
    attempt = 0
    if call.request.attempt is not None:
        attempt = check.integer("attempt", call.request.attempt, 0)
    if hosted.shard.initialised or attempt < hosted.attempt:
        hosted.check_attempt(call.request.identity.worker, attempt)
    return attempt
