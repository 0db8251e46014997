"""A parameter server's shard on the wire: checks requests, passes them to jobs' shards, releases barriers.

The arithmetic is in `shard`; everything about bytes and deadlines is in `rpc`.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol

import torch

import idl
from idl import check
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError, RewoundError, UnavailableError
from idl.layout import UNTRAINED, Layout
from idl.translation import (
    read_assignment,
    read_groups,
    read_part,
    read_synchronisation,
    read_tensors,
    wire_norms,
    wire_place,
)
from ps.config import ParameterServerConfig
from ps.counters import TimedSink
from ps.jobs import Jobs
from ps.model_tensors import ModelTensors
from ps.optimizers import DTYPES, check_optimizer
from ps.parameters import Parameters
from ps.shard_job import ShardJob, TensorSink
from rpc.service import Call, Connection, Discard, Sink

_wire = idl.parameter_server

_PULL_SECONDS = 600.0  # for which a pull is held back whose caller does not say for how long
_PUSHED = {"bfloat16": torch.bfloat16}  # dtypes of gradients, beside their job's
_SETTLE_SECONDS = 1.0  # that a fence waits at most for a checkpoint that is being written


class ShardObserver(Protocol):
    """Callbacks of what a shard does; times are of the monotonic clock in nanoseconds."""

    def pushed(self, job: ShardJob, request: Any, began: int) -> None:
        """Handle that a gradient has arrived completely and was used; its first bytes arrived at `began`."""

    def stepped(self, job: ShardJob, version: int, began: int) -> None:
        """Handle that the optimiser has taken the step from `version` to the next, begun at `began`."""


class ParameterServerService:
    """Serves `idl/parameter_server.thrift`; see `rpc.service.Service`."""

    definition = _wire.ParameterServer
    bulk_methods = frozenset({"initialise", "push"})

    def __init__(self, config: ParameterServerConfig) -> None:
        self.observer: ShardObserver | None = None  # receives the callbacks, if it is set
        self._jobs = Jobs(config)
        self._process = uuid.uuid4().hex
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
        """Handle a call; a bulk method's call comes once its bulk field has arrived."""
        self._handlers[call.method](call)

    def open_sink(self, call: Call, length: int) -> Sink:
        """Return the sink for the parameters or the gradient of a call, which has `length` bytes.

        Raises:
            InvalidRequestError: The length is not the layout's, or the request is not allowed.
            UnavailableError, RewoundError, NotMemberError: As `idl/parameter_server.thrift` declares them.
        """
        job = self._job_of(call)
        layout = job.shard.layout
        dtype = _pushed_dtype(job.shard, call) if call.method == "push" else DTYPES[layout.dtype]
        expected = layout.elements * dtype.itemsize
        slot = call.request.slot if call.method == "initialise" else None
        if length != expected and slot != UNTRAINED:
            raise InvalidRequestError(
                f"{call.method}: {length} bytes, but the shard's {layout.elements} elements of "
                f"{str(dtype).removeprefix('torch.')} take {expected}"
            )
        if call.method == "initialise":
            _check_initialise(job, call)
            if job.shard.initialised:
                return Discard(length)
            return TensorSink(layout.elements, dtype) if slot is None else self._stage(job, call, length)
        return self._open_push(job, call, dtype, length)

    def disconnected(self, peer: Connection) -> None:
        """Drop the calls that wait on a connection which has ended."""
        for job in self._jobs:
            job.peers.discard(peer)
            job.readers.discard(peer)
            job.waiting = [entry for entry in job.waiting if entry[0].peer is not peer]
            job.streams = {call: sent for call, sent in job.streams.items() if call.peer is not peer}
            job.fences = [entry for entry in job.fences if entry[0].peer is not peer]
            if not job.peers and job.left_at is None:
                job.left_at = time.monotonic()

    def tick(self, now: float) -> None:
        """Answer calls whose time to wait is over, and drop jobs that have had no connection for long."""
        for job in self._jobs:
            with job.sweeping:
                job.expire_pulls(now)
                self._answer_fences(job, now)
        self._jobs.forget(now)

    def stop(self) -> None:
        """Refuse all calls that wait, and write a checkpoint of each job."""
        for job in self._jobs:
            held = [entry[0] for entry in job.waiting] + [entry[0] for entry in job.fences]
            for call in held:
                call.fail(UnavailableError("the parameter server is shutting down"))
            job.waiting.clear()
            job.fences.clear()
        self._jobs.close()

    @property
    def jobs(self) -> list[ShardJob]:
        """Return the jobs that this process holds; may be called from any thread."""
        return self._jobs.all

    # -- methods

    def _open(self, call: Call) -> None:
        request = _request_of(call)
        job_name, worker, _ = check.identity(request.identity)
        layout = Layout(
            check.text("dtype", request.dtype),
            check.text("optimizer", request.optimizer),
            read_groups(request.groups),
            order="" if request.order is None else check.text("order", request.order),
        )
        check_optimizer(layout)
        synchronisation = read_synchronisation(request.synchronisation)
        tensors = read_tensors(request.tensors)
        model = ModelTensors(worker, tensors) if tensors else None
        part = read_part(request.part)
        job = self._jobs.find(job_name)
        if job is None:
            job = self._jobs.add(job_name, layout, synchronisation, model)
        else:
            job.check_part(worker, part)
            job.check_same(worker, model, layout, synchronisation)
        job.shard.start_worker(worker, layout.groups)
        job.part, job.model = job.part or part, job.model or model
        self._connect(job, call.peer)
        call.reply(
            _wire.OpenReply(
                identity=request.identity,
                initialised=job.shard.initialised,
                version=job.shard.version,
                attempt=job.attempt,
                instance=job.instance,
                restored=job.is_restored or None,
                ahead=job.shard.partial_steps,
                dtypes=list(_PUSHED),
                untrained=True,
                weights=True,
            )
        )

    def _initialise(self, call: Call) -> None:
        job = self._job_of(call)
        version = check.integer("version", call.request.version, 0)
        attempt = _check_initialise(job, call)
        accepted = isinstance(call.sink, TensorSink) and not job.shard.initialised
        if isinstance(call.sink, TensorSink) and accepted and call.request.slot is None:
            _, worker, incarnation = check.identity(call.request.identity)
            with self._changing(job):
                job.initialise(worker, incarnation, call.sink.tensor, version, attempt)
            self._step_when_copied(job)
        call.reply(_wire.InitialiseReply(identity=call.request.identity, accepted=accepted))
        self._release(job)

    def _push(self, call: Call) -> None:
        job = self._job_of(call)
        _check_attempt(job, call, call.request.assignment.attempt)  # it may have changed since the push began
        job.tally.pushed += job.shard.layout.elements * _pushed_dtype(job.shard, call).itemsize
        is_finite = True
        if isinstance(call.sink, TimedSink):
            if call.sink.shard is not job.shard:
                raise RewoundError("the shard has gone back since the push began", job.attempt)
            is_finite = call.sink.is_finite
            call.sink.close()
            job.tally.pushes += 1
            if self.observer is not None:
                self.observer.pushed(job, call.request, call.sink.began)
        else:
            job.tally.duplicates += 1
        if job.store and call.request.checkpointed is not None:
            kept = -1 if call.request.kept is None else check.integer("kept", call.request.kept, 0)
            job.store.mark_common(kept, check.integer("checkpointed", call.request.checkpointed, -1))
        call.reply(
            _wire.PushReply(
                identity=call.request.identity,
                iteration=call.request.assignment.iteration,
                checkpoints=list(job.checkpoints),
                checkpointed=job.store.tried if job.store else None,
                norms=wire_norms(job.shard.norms),
                not_finite=not is_finite or None,
            )
        )
        # Once the answer is out: the step must not count as the last worker's processing time.
        self._soon(self._step, job)

    def _pull(self, call: Call) -> None:
        request = _request_of(call)
        until = call.since + check.wait(request.wait, _PULL_SECONDS)
        job = self._job_of(call)
        version = check.integer("version", request.version, -1)
        if request.slot is not None:
            check.text("slot", request.slot)
        if job.shard.initialised:  # else the call waits for the first parameters
            _check_reader(job, call)
        if request.ahead:  # by one that has yet to push its gradient
            job.is_pulled_early = job.is_pulled_early or version == job.shard.version + 1
        elif version < 0 or job.note_pull(request.identity.worker, version, settled=bool(request.settled)):
            self._step(job)  # also that of a push which was answered just before
        job.waiting.append((call, version, until))
        self._release(job)
        self._step_in_part_soon(job)

    def _fence(self, call: Call) -> None:
        job_name, _, _ = check.identity(_request_of(call).identity)
        attempt = check.integer("attempt", call.request.attempt, 0)
        if self._jobs.find(job_name) is None:  # there is nothing to fence
            call.reply(
                _wire.FenceReply(
                    identity=call.request.identity,
                    initialised=False,
                    version=0,
                    checkpoints=[],
                    process=self._process,
                )
            )
            return
        job = self._job_of(call)
        manager = call.request.manager
        self._step(job)
        if job.fence(attempt, None if manager is None else check.text("manager", manager)):
            job.end_pulls(RewoundError(f"attempt {attempt} has begun", attempt))
        job.fences.append((call, time.monotonic() + _SETTLE_SECONDS))
        self._answer_fences(job, time.monotonic())

    def _rewind(self, call: Call) -> None:
        request = _request_of(call)
        if request.reset and self._jobs.find(check.identity(request.identity)[0]) is None:
            call.reply(
                _wire.RewindReply(identity=request.identity, instance="")
            )  # there are no parameters to drop
            return
        job = self._job_of(call)
        attempt = check.integer("attempt", call.request.attempt, 0)
        job.check_attempt(call.request.identity.worker, attempt)
        version = check.integer("version", call.request.version, 0)
        if job.fenced and job.shard.is_complete and version == job.shard.version + 1:
            if job.is_copying:
                raise UnavailableError(f"version {job.shard.version} is being copied for its checkpoint")
            self._take_steps(job)
        with self._changing(job):
            if request.reset:
                job.reset(version)
            else:
                job.rewind(version)
        call.reply(_wire.RewindReply(identity=call.request.identity, instance=job.instance))
        self._release(job)

    def _state(self, call: Call) -> None:
        job = self._job_of(call)
        call.reply(
            _wire.StateReply(
                identity=call.request.identity,
                steps=job.shard.steps,
                slots=job.shard.slots(),
                untrained=None if job.untrained is None else job.untrained.nbytes,
            )
        )

    def _forfeit(self, call: Call) -> None:
        request = _request_of(call)
        job = self._job_of(call)
        iteration = check.integer("iteration", request.iteration, 0)
        start = check.integer("start", request.start, 0)
        total = check.integer("total", request.total, 1)
        count = check.integer("count", request.count, 0, total)
        job.shard.forfeit(iteration, start, count, total)
        self._step(job)
        call.reply(_wire.ForfeitReply(identity=request.identity, iteration=iteration))

    # -- within

    def _stage(self, job: ShardJob, call: Call, length: int) -> TensorSink:
        """Return the sink for what comes beside the parameters, which needs memory as they do."""
        _, worker, incarnation = check.identity(call.request.identity)
        slot = check.text("slot", call.request.slot)
        steps = 0 if slot == UNTRAINED else check.integer("steps", call.request.steps, 0)
        self._jobs.make_room(length)
        return job.stage(worker, incarnation, slot, steps, length)

    def _open_push(self, job: ShardJob, call: Call, dtype: torch.dtype, length: int) -> Sink:
        """Return the sink for a gradient: one that drops it, where its samples were counted already."""
        request = call.request
        worker = request.identity.worker
        part = read_assignment(request.assignment)
        check.integer("count", part.count, 1, part.total)
        _check_attempt(job, call, part.attempt)
        if job.fenced:
            raise UnavailableError(f"no worker has said yet from which version attempt {job.attempt} goes on")
        job.shared = bool(request.shared) and job.synchronisation.mode == "bsp"
        if job.shard.has_used(part, worker):
            return Discard(length)
        groups = read_groups(request.groups) if request.groups else ()
        weight = None if request.weight is None else check.number("weight", request.weight, 0.0, 2.0**62)
        early = request.identity.incarnation if request.early else ""
        contribution = job.shard.begin(part, worker, early, weight)
        sink = TimedSink(job.shard, contribution, dtype, job.tally, lambda: self._step_in_part_soon(job))
        if groups:
            try:
                job.shard.set_options(contribution, groups)
            except InvalidRequestError:
                sink.abort()
                raise
        return sink

    def _job_of(self, call: Call) -> ShardJob:
        job_name, worker, _ = check.identity(_request_of(call).identity)
        job = self._jobs.find(job_name)
        if job is None:
            reason = f"{call.method}: {worker!r} has not opened job {job_name!r}"
            if getattr(call.request, "instance", None) is not None:
                raise RewoundError(f"{reason} since this parameter server was started", 0)
            raise NotMemberError(reason)
        job.check_part(worker, read_part(getattr(call.request, "part", None)))
        self._connect(job, call.peer)
        return job

    def _connect(self, job: ShardJob, peer: Connection) -> None:
        job.peers.add(peer)
        job.left_at = None

    @contextlib.contextmanager
    def _changing(self, job: ShardJob) -> Iterator[None]:
        """Change a job's state; if that fails half-way, drop the job, which comes back with its checkpoint.

        Raises:
            EvenpaceError: It failed, or was refused before it began.
        """
        try:
            yield
        except EvenpaceError:
            raise
        except Exception as error:
            lost = self._jobs.lose(job, error)
            job.fenced = True  # whatever still comes for it changes nothing
            job.end_pulls(lost)
            for call, _ in job.fences:
                call.fail(lost)
            job.fences.clear()
            raise lost from error

    def _soon(self, act: Callable[[ShardJob], None], job: ShardJob) -> None:
        """Have something done with a job once all that has arrived is handled."""

        def then() -> None:
            with contextlib.suppress(EvenpaceError):  # who waits for it has been told
                act(job)

        asyncio.get_running_loop().call_soon(then)

    def _step(self, job: ShardJob) -> None:
        """Take a step if one is due."""
        if job.is_due:
            self._take_steps(job)

    def _take_steps(self, job: ShardJob) -> None:
        """Take the steps that are complete: one, or in the asynchronous modes one for each gradient."""
        if not job.shard.has_partial_step:  # else the step is in other memory than the parameters already
            if job.is_read:
                # A slow reader may still be sent the parameters' memory: leave that memory as it is.
                with self._changing(job):
                    job.shard.detach_parameters()
            job.readers.clear()
        while job.shard.is_complete:
            began, version = time.monotonic_ns(), job.shard.version
            with self._changing(job):
                job.shard.step()
            job.tally.steps.add(job.part_seconds + (time.monotonic_ns() - began) / 1e9)
            job.is_pulled_early, job.part_seconds = False, 0.0
            if self.observer is not None:
                self.observer.stepped(job, version, began)
        self._release(job)
        job.record_step()  # before another call, but after the answers that workers wait for
        self._step_when_copied(job)

    def _step_in_part_soon(self, job: ShardJob) -> None:
        """Have `_step_in_part` called once for all that has arrived, if somebody pulls early."""
        if not job.is_part_due and job.is_pulled_early:
            job.is_part_due = True
            self._soon(self._step_in_part, job)

    def _step_in_part(self, job: ShardJob) -> None:
        """Take the next step as far as gradients have arrived, and send it to those who pull early."""
        job.is_part_due = False
        shard = job.shard
        if job.fenced or not shard.initialised:
            return
        if shard.partial_step is not None and not shard.has_partial_step and job.is_read:
            shard.partial_step.leave_memory()
        began = time.perf_counter()
        with self._changing(job):
            shard.step_in_part()
        job.part_seconds += time.perf_counter() - began
        if shard.has_partial_step:
            self._release(job)

    def _step_when_copied(self, job: ShardJob) -> None:
        """Take the next step, if it is due then, once the checkpoint under way has copied its tensors."""
        if not job.is_copying:
            return
        loop = asyncio.get_running_loop()

        def copied(_: "Future[None]") -> None:
            with contextlib.suppress(RuntimeError):  # the service has stopped
                loop.call_soon_threadsafe(self._soon, self._step, job)

        assert job.copying is not None
        job.copying.add_done_callback(copied)

    def _answer_fences(self, job: ShardJob, now: float) -> None:
        """Answer the fences once the checkpoint under way is written, or their time to wait is over."""
        writing = job.store is not None and job.store.is_writing
        ready = [call for call, until in job.fences if not writing or now >= until]
        job.fences = [(call, until) for call, until in job.fences if call not in ready]
        shard = job.shard
        for call in ready:
            call.reply(
                _wire.FenceReply(
                    identity=call.request.identity,
                    initialised=shard.initialised,
                    version=shard.version,
                    checkpoints=list(job.checkpoints),
                    complete=shard.is_complete or None,
                    process=self._process,
                    places={version: wire_place(place) for version, place in job.reachable_places().items()},
                )
            )

    def _release(self, job: ShardJob) -> None:
        """Answer the pulls whose version has been reached."""
        shard = job.shard
        if not shard.initialised or job.fenced:
            return
        still_waiting = []
        for entry in job.waiting:
            call, version, _ = entry
            slot = call.request.slot
            is_early = bool(call.request.ahead) and slot is None and version == shard.version + 1
            if shard.version < version and not (is_early and shard.has_partial_step):
                still_waiting.append(entry)
                continue
            try:
                _check_reader(job, call)
                if not is_early:
                    shard.check_options(call.request.identity.worker)
                if slot == UNTRAINED and job.untrained is not None:
                    values = job.untrained.numpy().data
                else:
                    values = shard.parameters() if slot is None else shard.slot(slot)
            except (InvalidRequestError, RewoundError) as error:
                call.fail(error)
                continue
            except RuntimeError as error:  # torch's, where there is no memory for a copy
                call.fail(UnavailableError(f"version {shard.version} cannot be sent at present: {error}"))
                continue
            reply = _wire.PullReply(
                identity=call.request.identity,
                version=version if is_early or call.request.has else shard.version,
                waited=time.monotonic() - call.since,
                parameters=b"",
            )
            if call.request.has:
                call.reply(reply)
                continue
            job.tally.pulls += 1
            job.tally.pulled += values.nbytes
            job.readers.add(call.peer)
            if is_early:
                call.begin_reply(reply, values.nbytes)
                job.streams[call] = 0
            else:
                call.reply(reply, values)
        job.waiting = still_waiting
        self._stream(job)

    def _stream(self, job: ShardJob) -> None:
        """Send those who pull early what there is of the next step; the rest, once it is taken."""
        values = job.shard.next_parameters() if job.shard.has_partial_step else job.shard.parameters()
        streams, job.streams = job.streams, {}
        for call, sent in streams.items():
            if len(values) > sent:
                call.send(values[sent:])
            if len(values) < job.shard.layout.nbytes:
                job.streams[call] = len(values)


def _request_of(call: Call) -> Any:
    """Return a call's request (InvalidRequestError: the request is missing)."""
    if call.request is None:
        raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
    return call.request


def _pushed_dtype(shard: Parameters, call: Call) -> torch.dtype:
    """Return the dtype of the gradient in a push.

    Raises:
        InvalidRequestError: It is none that the shard can add up.
    """
    name = _request_of(call).dtype
    if name is None:
        return shard.pushed_dtype
    if name not in _PUSHED:
        raise InvalidRequestError(
            f"push: dtype {name!r}: there are {', '.join(_PUSHED)}, beside the job's own"
        )
    if not shard.pushed_dtype.is_floating_point:
        raise InvalidRequestError(f"push: dtype {name!r}: this job sums gradients exactly, without rounding")
    return _PUSHED[name]


def _check_attempt(job: ShardJob, call: Call, attempt: int | None) -> None:
    """Check that a caller is in the job's attempt and relies on this process.

    Stock clients may leave out both.

    Raises:
        RewoundError: The caller is in another attempt, or relies on another process.
    """
    attempt = 0 if attempt is None else check.integer("attempt", attempt, 0)
    job.check_attempt(call.request.identity.worker, attempt, call.request.instance)


def _check_reader(job: ShardJob, call: Call) -> None:
    """Do as `_check_attempt` for a pull, except for one of an observer, which names no version or attempt."""
    if call.request.version >= 0 or call.request.attempt is not None:
        _check_attempt(job, call, call.request.attempt)


def _check_initialise(job: ShardJob, call: Call) -> int:
    """Return the attempt that begins with the caller's parameters.

    Raises:
        RewoundError: A later attempt has begun, or the parameters are of another one.
    """
    attempt = 0
    if call.request.attempt is not None:
        attempt = check.integer("attempt", call.request.attempt, 0)
    if job.shard.initialised or attempt < job.attempt:
        job.check_attempt(call.request.identity.worker, attempt)
    return attempt
