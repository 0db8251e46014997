"""A job with its waiting calls and its members' connections: composes the answers, and sends them.

Must not know when jobs are created, nor which events come in; that is the service's part.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import idl
from batchsize_manager.balancing import Balancing
from batchsize_manager.job.effects import EVENTS, Answer, Effects
from batchsize_manager.job.job import Job
from batchsize_manager.job.waiting import awaited
from batchsize_manager.storage.changes import Begun, Change, Completed, Ended, Learned, Logged, Rewound, Saved
from batchsize_manager.storage.state_writer import StateWriter
from idl.errors import EvenpaceError, NotMemberError, NotYetError, UnavailableError
from idl.translation import wire_assignment, wire_lost, wire_seat, wire_synchronisation
from rpc.limited_log import LimitedLog
from rpc.periodic import Periodic
from rpc.service import Call, Connection

_wire = idl.batchsize_manager


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that is answered with an assignment once there is one."""

    call: Call
    until: float = math.inf  # the time by which it is answered "not yet" if there is no assignment; seconds
    reported_iteration: int = -1  # the iteration that the call reports; -1 for none
    known: int = -1  # the last iteration for which the caller has an assignment, if it names one; else -1

    @property
    def incarnation(self) -> str:
        """The incarnation of the caller."""
        return str(self.call.request.identity.incarnation)


@dataclass(frozen=True, slots=True)
class Held:
    """A heartbeat that is answered once its worker has to recover."""

    call: Call
    until: float  # the time by which it is answered in any case, in seconds
    known: int | None  # the attempt with which the worker knows that it has to recover; None for none


@dataclass(slots=True)
class ManagedJob:
    """A job that the manager runs.

    Args:
        name: The job's name.
        run: The id of this run of the job, drawn when it was created; a job that begins again has another.
        job: The state machine.
        managers: The manager's balancing, used where no operator has chosen another.
        writer: The writer of the manager's state; None where it is not kept.
        limited_log: The log for the job's events.
    """

    name: str
    run: str
    job: Job
    managers: Balancing
    writer: StateWriter | None
    limited_log: LimitedLog
    is_kept: bool = False  # whether it is in the manager's state; not before its start
    since: float = field(default_factory=time.monotonic)  # the time at which this manager got it
    ending: str = ""  # why it has ended
    unwritten: list[Change] = field(default_factory=list)  # changes that the writer does not have yet
    logged: int = 0  # events so far
    # The last events, with their times in seconds since 1970.
    log: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    sweeping: Periodic = field(default_factory=lambda: Periodic("looking at a job's deadlines"))
    waiting: dict[str, Waiting] = field(default_factory=dict)  # by worker
    held: dict[str, Held] = field(default_factory=dict)  # by worker
    # By worker and incarnation.
    connections: dict[tuple[str, str], set[Connection]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.job.outbox.keeps_state = self.writer is not None

    @property
    def log_fields(self) -> dict[str, object]:
        """The fields that log lines about this job have beside their message."""
        job = self.job
        return {
            "job": self.name,
            "run": self.run,
            "attempt": job.attempts.number,
            "iteration": job.iterations.first_open,
        }

    @property
    def balancing(self) -> Balancing:
        """The balancing that an operator has chosen, or else the manager's."""
        return self.job.operations.balancing or self.managers

    @property
    def policy(self) -> str:
        """The name of the job's policy."""
        return self.balancing.policy

    @property
    def predictor(self) -> str:
        """The name of the predictor of the job's policy; empty where that has none."""
        return self.balancing.predictor if self.balancing.uses_predictor else ""

    def note(self, effects: Effects) -> None:
        """Keep an event's effects for `status`, and for the manager's state until `hand_over`."""
        self.logged += len(effects.log)
        self.log.extend((time.time(), event) for event, _ in effects.log)
        run, state, now = self.run, effects.state, time.time()
        events = [event for event, _ in effects.log]
        if self.writer is not None and not self.is_kept and state is not None:
            self.is_kept = True
            self._add([Begun(run, self.name, self.policy, state, now)])
            self._add_models()
            events, state = [event for _, event in self.log], None
        if effects.rewound is not None:
            self._add([Rewound(run, effects.rewound)])
        self._add(Completed(run, record, now) for record in effects.completed)
        self._add(Logged(run, event, now) for event in events)
        if state is not None:
            self._add([Saved(run, state)])

    def hand_over(self) -> None:
        """Give the writer what was noted.

        This wakes the writer's thread, which delays the event loop: answers that need not wait for the disk
        go before.
        """
        if self.writer is not None:
            for change in self.unwritten:
                self.writer.put(change)
        self.unwritten.clear()

    def keep_models(self) -> None:
        """Put the models of the job's policy into the manager's state."""
        self._add_models()
        self.hand_over()

    def keep_end(self) -> None:
        """Put the job's end, with its reason, into the manager's state."""
        self._add([Ended(self.run, self.ending, time.time())])
        self.hand_over()

    def once_kept(self, function: Callable[[], None]) -> None:
        """Call a function once all events so far are written; see `StateWriter.after_commit`."""
        if self.writer is None:
            function()
        else:
            self.hand_over()
            self.writer.after_commit(function)

    def _add(self, changes: Iterable[Change]) -> None:
        if self.is_kept:
            self.unwritten.extend(changes)

    def _add_models(self) -> None:
        if self.is_kept and (models := self.job.planner.policy.models()):
            self._add([Learned(self.run, models)])

    def log_events(self, effects: Effects) -> None:
        """Log the events among an event's effects."""
        fields = self.log_fields if effects.log else {}
        for event, worker in effects.log:
            about = fields if worker is None else fields | {"worker": worker}
            self.limited_log(logging.INFO, "job %s: %s", self.name, event, extra=about)

    def remembers(self, iteration: int) -> bool:
        """Return whether the records of an iteration and all later ones are in memory."""
        oldest = self.job.history(0, 1)
        return bool(oldest) and oldest[0].iteration <= max(iteration, self.job.first_iteration)

    def wait(self, worker: str, waiting: Waiting) -> None:
        """Keep a call until it can be answered; an earlier one of the same worker is refused.

        A worker that was released may call once more when another, which waits, has its name already.
        """
        earlier = self.waiting.get(worker)
        if earlier is not None:
            member = self.job.members.by_name.get(worker)
            if member is not None and member.incarnation == earlier.incarnation != waiting.incarnation:
                self._answer(worker, waiting)
                return
            earlier.call.fail(UnavailableError("asked again since; that call will be answered"))
        self.waiting[worker] = waiting

    def answer_all(self) -> None:
        """Answer the calls that can be answered."""
        for worker in list(self.waiting):
            self.answer(worker)
        if self.job.attempts.is_recovering:
            for worker in list(self.held):
                self._look_at_held(worker)

    def hold(self, worker: str, held: Held) -> None:
        """Keep a heartbeat until its worker has to recover; an earlier one is answered."""
        earlier = self.held.get(worker)
        self.held[worker] = held
        if earlier is not None:
            self.answer_heartbeat(earlier.call, None)

    def answer_heartbeat(self, call: Call, recover: int | None) -> None:
        """Answer a heartbeat.

        Args:
            recover: The attempt with which the worker has to recover; None for none.
        """
        reply = _wire.HeartbeatReply(
            identity=call.request.identity,
            recover=recover,
            paused=self.job.operations.paused or self.job.is_held_up or None,
            noise_scale=self.job.iterations.history.noise.noise.known_scale,
        )
        if recover is None:
            call.reply(reply)
        else:
            self.once_kept(lambda: call.reply(reply))

    def answer(self, worker: str) -> None:
        """Answer a worker's call, if it waits and can be answered."""
        waiting = self.waiting.get(worker)
        if waiting is not None and self._answer(worker, waiting):
            del self.waiting[worker]

    def expire(self, now: float) -> None:
        """Answer "not yet" to the calls that may not wait any longer."""
        late = [worker for worker, waiting in self.waiting.items() if now >= waiting.until]
        why = f"there is no assignment yet: {awaited(self.job)}" if late else ""
        for worker in late:
            self.waiting.pop(worker).call.fail(NotYetError(why))
        for worker in [worker for worker, held in self.held.items() if now >= held.until]:
            self._look_at_held(worker, is_late=True)

    def detach(self, worker: str, incarnation: str, peer: Connection, now: float) -> None:
        """Forget a member's closed connection; a member without any other counts as disconnected."""
        waiting = self.waiting.get(worker)
        if waiting is not None and waiting.call.peer is peer:
            del self.waiting[worker]
        held = self.held.get(worker)
        if held is not None and held.call.peer is peer:
            del self.held[worker]
        connections = self.connections.get((worker, incarnation), set())
        connections.discard(peer)
        if not connections:
            self.connections.pop((worker, incarnation), None)
            self.job.disconnect(worker, incarnation, now)

    def fail_all(self, error: EvenpaceError) -> None:
        """Refuse all calls that wait."""
        for waiting in self.waiting.values():
            waiting.call.fail(error)
        for held in self.held.values():
            held.call.fail(error)
        self.waiting.clear()
        self.held.clear()

    def _look_at_held(self, worker: str, *, is_late: bool = False) -> None:
        """Answer a worker's heartbeat that was held back, if it is late or the worker has to recover."""
        held = self.held[worker]
        incarnation = held.call.request.identity.incarnation
        try:
            is_released = self.job.members.is_released(worker, incarnation)
            recover = None if is_released else self.job.must_recover(worker, incarnation)
        except NotMemberError as error:
            del self.held[worker]
            held.call.fail(error)
            return
        if is_late or recover not in (None, held.known):
            del self.held[worker]
            self.answer_heartbeat(held.call, recover)

    def _answer(self, worker: str, waiting: Waiting) -> bool:
        """Answer a call, if it can be answered; return whether it was."""
        try:
            answer = self.job.answer(
                worker,
                waiting.incarnation,
                reported=waiting.reported_iteration,
                known=waiting.known,
                joins=waiting.call.method == "join",
                rewinds=waiting.call.method == "rewind",
            )
        except NotMemberError as error:
            waiting.call.fail(error)
            return True
        if answer is None:
            return False
        send = partial(waiting.call.reply, self._reply(waiting, answer))
        if answer.after_write:
            self.once_kept(send)
        else:
            send()
        return True

    def _reply(self, waiting: Waiting, answer: Answer) -> Any:
        """Return an answer as a struct of the wire."""
        reply = _wire.AssignmentReply(
            identity=waiting.call.request.identity,
            reported_iteration=waiting.reported_iteration,
            waited=time.monotonic() - waiting.call.since,
            lost=[wire_lost(slice_) for slice_ in answer.lost],
            run=self.run,
            released=answer.released,
            recover=answer.recover,
            report_on=answer.report_on,
        )
        if answer.assignment is not None:
            reply.assignment = wire_assignment(answer.assignment)
        if answer.seat is not None:
            reply.group = wire_seat(answer.seat)
        if answer.ahead is not None:
            reply.ahead = [wire_assignment(later) for later in answer.ahead]
        if waiting.call.method == "join":
            reply.synchronisation = wire_synchronisation(self.job.config.synchronisation)
            reply.lookahead = self.job.config.lookahead or None
            reply.heartbeat = self.job.config.heartbeat or None
            reply.continues = answer.continues
        return reply
