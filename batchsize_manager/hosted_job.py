"""A job and those who wait for an answer in it: who is told what, and who speaks through which connections.

When jobs are created and what happens to them is the service's business.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import idl
from batchsize_manager.balancing import Balancing
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import EVENTS, Effects
from batchsize_manager.job.job import Job
from idl.errors import EvenpaceError, NotMemberError, NotYetError, UnavailableError
from idl.translation import wire_assignment, wire_lost, wire_synchronisation
from rpc.limited_log import LimitedLog
from rpc.peer import Peer
from rpc.periodic import Periodic
from rpc.service import Call

_wire = idl.batchsize_manager


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that is answered with an assignment once there is one.

    Attributes:
        call: The call.
        until: When its caller is to ask again, if there is no assignment by then; seconds.
        reported_iteration: -1 for one that reports none.
        known: The iteration after whose the assignment is asked for, if one is named; else -1.
    """

    call: Call
    until: float = math.inf
    reported_iteration: int = -1
    known: int = -1

    @property
    def incarnation(self) -> str:
        """The caller's."""
        return str(self.call.request.identity.incarnation)


@dataclass(slots=True)
class HostedJob:
    """A job that the manager runs.

    Args:
        name: The job's.
        run: Drawn when it was created.
        job: The job.
        config: How it is run.
        balancing: How its batches are split.
        once_kept: Does something once all that has happened so far is where a new start of the manager would
            find it.
        tell: Where what happens is logged.
    """

    name: str
    run: str
    job: Job
    config: JobConfig
    balancing: Balancing
    once_kept: Callable[[Callable[[], None]], None]
    tell: LimitedLog
    rebalanced: bool = False  # whether an operator wanted that
    since: float = field(default_factory=time.monotonic)  # when this manager got it
    ending: str = ""  # why it has ended
    said: int = 0  # events that have been logged
    # The last events, and when they were logged, in seconds since 1970.
    log: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=EVENTS))
    deserted: bool = False  # whether it has no members
    sweeping: Periodic = field(default_factory=lambda: Periodic("looking at a job's deadlines"))
    waiting: dict[str, Waiting] = field(default_factory=dict)  # by worker
    connections: dict[tuple[str, str], set[Peer]] = field(default_factory=dict)  # by worker and incarnation

    @property
    def log_fields(self) -> dict[str, object]:
        """What lines of log about this job say beside their message."""
        job = self.job
        return {
            "job": self.name,
            "run": self.run,
            "attempt": job.attempts.number,
            "iteration": job.iterations.first_open,
        }

    @property
    def policy(self) -> str:
        """The name of its policy."""
        return self.balancing.policy

    @property
    def predictor(self) -> str:
        """Of its policy; empty where that has none."""
        return self.balancing.predictor if self.balancing.uses_predictor else ""

    def log_events(self, effects: Effects) -> None:
        """Log what has happened."""
        self.said += len(effects.log)
        fields = self.log_fields if effects.log else {}
        for event, worker in effects.log:
            self.log.append((time.time(), event))
            about = fields if worker is None else fields | {"worker": worker}
            self.tell(logging.INFO, "job %s: %s", self.name, event, extra=about)

    def remembers(self, iteration: int) -> bool:
        """Whether the records from an iteration on are all in memory."""
        oldest = self.job.history(0, 1)
        return bool(oldest) and oldest[0].iteration <= max(iteration, self.job.first_iteration)

    def wait(self, worker: str, waiting: Waiting) -> None:
        """Have a call wait; an earlier one of the same worker's is over.

        One that was released may ask once more when another has its name, and waits, already.
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
        """Answer who can be answered."""
        for worker in list(self.waiting):
            self.answer(worker)

    def answer(self, worker: str) -> None:
        """Answer a worker that waits, if there is something to say."""
        waiting = self.waiting.get(worker)
        if waiting is not None and self._answer(worker, waiting):
            del self.waiting[worker]

    def send_away(self, now: float) -> None:
        """Have those ask again whose answers may not be held back for longer."""
        for worker, waiting in list(self.waiting.items()):
            if now >= waiting.until:
                del self.waiting[worker]
                waiting.call.fail(NotYetError("there is no assignment yet"))

    def detach(self, worker: str, incarnation: str, peer: Peer, now: float) -> None:
        """A connection of a member's is gone; who has no other is away."""
        waiting = self.waiting.get(worker)
        if waiting is not None and waiting.call.peer is peer:
            del self.waiting[worker]
        connections = self.connections.get((worker, incarnation), set())
        connections.discard(peer)
        if not connections:
            self.connections.pop((worker, incarnation), None)
            self.job.disconnect(worker, incarnation, now)

    def fail_all(self, error: EvenpaceError) -> None:
        """Refuse everybody who waits."""
        for waiting in self.waiting.values():
            waiting.call.fail(error)
        self.waiting.clear()

    def _answer(self, worker: str, waiting: Waiting) -> bool:
        """Answer a call, if there is something to say."""
        try:
            reply = self._reply(worker, waiting)
        except NotMemberError as error:
            waiting.call.fail(error)
            return True
        if reply is None:
            return False
        if self._must_be_kept(waiting.call.method, reply):
            self.once_kept(partial(waiting.call.reply, reply))
        else:
            waiting.call.reply(reply)
        return True

    def _must_be_kept(self, method: str, reply: Any) -> bool:
        """Whether an answer says what a manager that is started anew must not have forgotten."""
        resized_at = self.job.planner.batches.last_change.iteration
        given = [] if reply.assignment is None else [reply.assignment, *(reply.ahead or ())]
        resized = any(part.iteration == resized_at for part in given)
        return method != "report" or reply.recover is not None or resized

    def _reply(self, worker: str, waiting: Waiting) -> Any:
        """The answer, or None if there is none yet."""
        job, identity = self.job, waiting.call.request.identity
        recover = assignment = report_on = None
        released = job.members.why_released(worker, identity.incarnation, waiting.known)
        if released is None:
            recover = job.must_recover(worker, identity.incarnation)
            if recover is None:
                assignment = job.next_assignment(worker, identity.incarnation, waiting.known)
                if assignment is None:
                    # Who has more to report must not be kept from that by this report's answer.
                    report_on = job.operations.paused and waiting.known > waiting.reported_iteration
                    if not report_on:
                        return None
        reply = _wire.AssignmentReply(
            identity=identity,
            reported_iteration=waiting.reported_iteration,
            waited=time.monotonic() - waiting.call.since,
            lost=[wire_lost(slice_) for slice_ in job.lost_since(max(0, waiting.reported_iteration))],
            run=self.run,
            released=released,
            recover=recover,
            report_on=report_on,
        )
        if assignment is not None:
            reply.assignment = wire_assignment(assignment)
            if self.config.lookahead:
                ahead = job.assignments_after(worker, assignment.iteration)
                reply.ahead = [wire_assignment(later) for later in ahead]
        if waiting.call.method == "join":
            reply.synchronisation = wire_synchronisation(self.config.synchronisation)
            reply.lookahead = self.config.lookahead or None
            reply.heartbeat = self.config.heartbeat or None
        return reply
