"""A worker's membership in a job: it joins, reports each iteration, and gets its assignments.

This module calls the BatchSizeManager alone. In the paper's blocking mode a report is a call that waits for
the answer. Where the manager plans ahead, a thread reports while the next iterations are computed (LB-BSP,
section 4). A manager that cannot be reached is waited for, as long as for the other workers.
"""

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import idl
from idl.bounds import Bounds
from idl.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    NotYetError,
    ProtocolError,
    ReleasedError,
    RewoundError,
    UnavailableError,
)
from idl.exchange import PARAMETER_SERVER, Seat
from idl.plan import Assignment, JobSpec, Resume
from idl.records import Report
from idl.translation import (
    read_assignment,
    read_seat,
    read_synchronisation,
    wire_bounds,
    wire_place,
    wire_report,
    wire_resume,
    wire_spec,
)
from rpc.client import Client
from rpc.field_log import FieldLog
from worker.heartbeat import Heartbeat
from worker.messages import Joined

__all__ = ["Joined", "Membership"]

T = TypeVar("T")

log = FieldLog(__name__)

_wire = idl.batchsize_manager

_SEND_SECONDS = 1.0  # to send a report before its answer is needed; if that fails, it is sent then
_LAST_REPORTS_SECONDS = 1.0  # for the answers to the last reports, before the worker leaves
_BEGIN_QUIET_SECONDS = 5.0  # of waiting for the job to begin, before a line of log says for whom
_QUIET_SECONDS = 60.0  # likewise, for it to go on
_AGAIN_SECONDS = 60.0  # until the same line is logged again, if it is still true


class _Finished(NamedTuple):
    """A report that is not sent yet, and what returns its batch processing time."""

    report: Report
    seconds: Callable[[], float]


class _WaitLog:
    """The log of one call that waits for other workers: what for, once it has waited for long.

    Args:
        until: What the job is to do then, in words: "to begin".
        quiet: Seconds of waiting before the first line.
        log: A logger whose fields all log lines get.
    """

    def __init__(self, job: str, until: str, quiet: float, log: FieldLog) -> None:
        self._job, self._until, self._log = job, until, log
        self._said, self._due = "", quiet

    def __call__(self, awaits: str, seconds: float) -> None:
        """Take what the call waits for, and the seconds since it was made."""
        if seconds < self._due and not (self._said and awaits != self._said):
            return
        self._said, self._due = awaits, seconds + _AGAIN_SECONDS
        self._log.info(
            "waiting for job %s %s, for %.0f s so far: %s", self._job, self._until, seconds, awaits
        )


class Membership:
    """One worker's membership in one job.

    Args:
        client: A client of the manager; used by one thread at a time.
        identity: This worker's `Identity` of common.thrift.
        timeout: Seconds for which the other workers may keep this one waiting.
        on_lost: Called with slices that were lost, possibly by the thread that reports.
        on_failure: Called with the error that ended a thread.
        fence: Called, by any thread, with the attempt that the shards are to be fenced with; None without a
            parameter server.
        log: A logger whose fields all log lines get.

    Attributes:
        paused_at: When a heartbeat was told last that the job is paused, or held up by a script that does
            something else; a wait's time-out counts from then on.
    """

    def __init__(
        self,
        client: Client,
        identity: Any,
        timeout: float,
        on_lost: Callable[[Sequence[Any]], None],
        on_failure: Callable[[EvenpaceError], None],
        fence: Callable[[int], None] | None = None,
        log: FieldLog = log,
    ) -> None:
        self.released: str | None = None  # the reason for the worker's release, once it was released
        self.attempt = 0  # the attempt that this worker is in
        # Id of the manager's process that has answered `recover` last; None before.
        self.process: str | None = None
        # Whether this worker's script does something else, between two batches or before the first.
        self.is_between = False
        self.paused_at = -math.inf
        # The job's gradient noise scale at the last heartbeat, in samples; None if not known well.
        self.noise_scale: float | None = None
        self._client = client
        self._control = client
        self._identity = identity
        self._timeout = timeout
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._fence = fence
        self._log = log.of(__name__)
        self._joined: bool | None = None  # None before `join` was called
        self._again: Any = None  # the request to join again
        self._lookahead = 0
        self._heartbeat_seconds: float | None = None
        self._heartbeat: Heartbeat | None = None
        self._last_assigned = -1  # the last iteration with an assignment
        self._maximum: int | None = None  # samples, not reported yet
        self._change = threading.Condition()  # guards what follows, `released` and `attempt`
        self._planned: deque[Assignment] = deque()  # assignments that have not been begun yet
        self._failure: EvenpaceError | None = None
        self._recover: int | None = None  # the attempt that the job is to recover into
        self._fenced = 0  # the last attempt that this worker has fenced the shards with
        self._fencing: threading.Thread | None = None
        self._reports: queue.SimpleQueue[_Finished | None] = queue.SimpleQueue()
        self._unanswered: Any = None  # the report whose answer the thread waits for
        self._sent: Any = None  # the report of `send_report`, until `take_answer`
        self._is_due = False  # whether its answer comes next on the client's connection
        self._leaving = False
        self._thread: threading.Thread | None = None

    def join(
        self,
        spec: JobSpec,
        bounds: Bounds,
        resume: Resume | None = None,
        learned: bytes = b"",
        *,
        exchange: str = PARAMETER_SERVER,
        device: str | None = None,
        threads: int | None = None,
    ) -> Joined:
        """Become a member of the job, and wait until all workers have joined.

        Args:
            spec: The data that the job trains on, and its order.
            bounds: The batch sizes that this worker can take.
            resume: The position that a saved job continues from.
            learned: The manager's learned state at that position, serialised.
            exchange: The way in which workers exchange gradients, one of `idl.exchange`; the same for all.
            device: The kind of this worker's device, in words; None to leave it out.
            threads: The threads that it computes with; None to leave them out.

        Raises:
            InvalidRequestError: The manager refuses, with the reason.
            ConnectionLostError: The manager cannot be reached.
        """
        request = _wire.JoinRequest(
            identity=self._identity,
            job=wire_spec(spec),
            bounds=wire_bounds(bounds),
            resume=None if resume is None else wire_resume(resume, len(learned)),
            exchange=exchange,
            device=device,
            threads=threads,
            heartbeats=True,
        )
        self._joined = False
        on_wait = _WaitLog(self._identity.job, "to begin", _BEGIN_QUIET_SECONDS, self._log)
        while (reply := self._client.call("join", request, on_wait=on_wait)).resume and resume is not None:
            self._client.call("resume", request, bulk=memoryview(learned))
        request.resume, request.run, request.wait = None, reply.run, None
        self._again, self._joined = request, True
        self._client.set_connect_timeout(self._timeout)
        if reply.assignment is not None:
            self.attempt = reply.assignment.attempt or 0
        self._lookahead = reply.lookahead or 0
        self._heartbeat_seconds = reply.heartbeat or None
        if reply.continues is not None:
            self._log.warning(
                "job %s goes on with a run that had begun before, at iteration %d as far as is known, and "
                "none of that run's workers is there. If it was over, and the manager was started again "
                "before it could write that down, name another job, or wait until it has given the run up "
                "(`evenpace manager --keep-job`)",
                self._identity.job,
                reply.continues,
            )
        self._note_reply(reply)
        if self._lookahead:
            self._control = self._client.twin()  # the reporting thread waits on the other connection
            self._thread = threading.Thread(target=self._report_all, name="evenpace-reports", daemon=True)
            self._thread.start()
        synchronisation = _read_answer(read_synchronisation, reply.synchronisation)
        host = self._client.local_host
        return Joined(reply.run, synchronisation, self._lookahead, list(reply.lost), host)

    def start_heartbeat(self) -> None:
        """Start to send heartbeats, if the manager has asked for them; see `worker.heartbeat`."""
        if self._heartbeat_seconds is not None:
            twin = self._client.twin()
            self._heartbeat = Heartbeat(twin, self._identity, self._heartbeat_seconds, self, self._log)

    def report(self, report: Report, seconds: Callable[[], float]) -> None:
        """Report an iteration and wait for the answer; where the manager plans ahead, the thread does so.

        Args:
            report: The report, but for the batch processing time.
            seconds: Returns that; called when the report is sent, since a GPU's time may be known late.
        """
        finished = self._finished(report, seconds)
        if self._lookahead:
            self._reports.put(finished)
        else:
            self._call_report(self._request(finished))

    def send_report(self, report: Report, seconds: Callable[[], float]) -> None:
        """Send a report without waiting for the answer, which `take_answer` does.

        Args:
            report: As for `report`.
            seconds: Likewise.
        """
        finished = self._finished(report, seconds)
        if self._lookahead:
            self._reports.put(finished)
            return
        self._sent = self._request(finished)
        with contextlib.suppress(EvenpaceError):  # then `take_answer` sends it
            self._client.send("report", self._sent, deadline=time.monotonic() + _SEND_SECONDS)
            self._is_due = True

    def take_answer(self) -> None:
        """Wait for the answer to the report of `send_report`; where it got lost, send the report again."""
        request, self._sent = self._sent, None
        if request is not None:
            self._call_report(request)

    def next(self) -> Assignment | None:
        """Wait for the next assignment and return it; None if the worker is released.

        Raises:
            RewoundError: The manager has begun another attempt.
            EvenpaceError: A report has failed.
            DeadlineExceededError: The other workers kept this one waiting for too long.
        """
        with self._change:
            while not self._change.wait_for(self._is_decided, self._timeout):
                if self.was_paused:
                    continue
                awaits = f": {self._client.awaits}" if self._client.awaits else ""
                raise DeadlineExceededError(
                    f"there is no assignment after iteration {self._last_assigned} within "
                    f"{self._timeout:g} s{awaits}"
                )
            if self._recover is not None:
                raise RewoundError("the manager has begun another attempt", self._recover)
            if self._planned:
                return self._planned.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def planned(self, iteration: int) -> Assignment | None:
        """Return the assignment of a later iteration, or None if it is not planned yet."""
        with self._change:
            return next((a for a in self._planned if a.iteration == iteration), None)

    def checkpoint(self) -> tuple[bytes, int | None]:
        """Return the manager's learned state, and the samples of a whole batch, for `join` to resume from."""
        request = _wire.CheckpointRequest(identity=self._identity)
        reply = self._call_patiently(self._control, "checkpoint", request)
        return bytes(reply.learned), reply.total_batch_size

    def leave(self, *, failed: bool = False) -> None:
        """Leave the job; errors are only logged. May be called while another thread waits in `join`.

        Args:
            failed: Whether this worker ends by an error, before it has finished.
        """
        if self._joined is None:
            return
        self._leaving = True
        self._drop_answer()
        reason = ConnectionLostError("this worker is leaving")
        if self._heartbeat is not None:
            self._heartbeat.stop(reason)
        if not self._joined:
            self._client.abandon(reason)
            self._control = self._client.twin()
        if self._thread is not None:
            self._client.abandon(reason)
            self._reports.put(None)
            self._thread.join(2 * _LAST_REPORTS_SECONDS)
        try:
            if self.released is None or self._thread is not None:  # it may not have reported all of it
                request = _wire.LeaveRequest(identity=self._identity, failed=failed or None)
                if self._control.call("leave", request, timeout=5.0).unwritten:
                    self._log.warning(
                        "the manager cannot write down at present that this worker has left: if it is "
                        "started again before it can, the next run of job %s goes on with this one",
                        self._identity.job,
                    )
        except EvenpaceError as error:
            self._log.debug("leave: %s", error)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._control.close()

    # -- recovery, called by `worker.job_recovery`

    def recover(self, attempt: int) -> int:
        """Have an attempt after `attempt` begun, and return its number; wait for an unreachable manager.

        Raises:
            EvenpaceError: That after which this worker cannot go on; another attempt would delay the others.
        """
        if self._failure is not None:
            raise self._failure
        request = _wire.RecoverRequest(identity=self._identity, attempt=attempt)
        reply = self._call_patiently(self._control, "recover", request)
        self.process = reply.manager
        return int(reply.attempt)

    def has_trained(self) -> bool:
        """Return whether the manager knows of a complete iteration."""
        request = _wire.HistoryRequest(job=self._identity.job, first_iteration=0, limit=1)
        return bool(self._control.call("history", request).iterations)

    def rewind(self, attempt: int, iteration: int, place: tuple[int, int] | None) -> Assignment | None:
        """Enter another attempt.

        Args:
            iteration: The iteration that it may begin with, as far as this worker knows.
            place: Epoch and first position of that iteration's batch; None if the shards do not know.

        Returns:
            The first assignment of the attempt; None if the worker is released.

        Raises:
            RewoundError: A later attempt has begun.
        """
        request = _wire.RewindRequest(
            identity=self._identity, attempt=attempt, iteration=iteration, place=wire_place(place)
        )
        return self._rewind(request)[0]

    def meet(
        self,
        attempt: int,
        steps: int,
        place: tuple[int, int] | None,
        store: str,
        formed: int | None,
        formed_by: str | None,
        *,
        kept: bool,
    ) -> tuple[Assignment | None, Seat | None]:
        """Enter another attempt together with all other members, for which the manager has a group formed.

        Args:
            steps: Steps that this worker's parameters have had.
            place: Epoch, and the position after the batch of the last step; None where there was none.
            store: HOST:PORT of the store that this worker serves.
            formed: The last attempt whose group was formed, with all of the state; None if there is none.
            formed_by: `Seat.manager` of that group.
            kept: Whether this worker has written that state down, as `Seat.keep` has asked it.

        Returns:
            The first assignment of the attempt, and this worker's place in the group; None for both if it is
            released.

        Raises:
            RewoundError: A later attempt has begun.
        """
        request = _wire.RewindRequest(
            identity=self._identity,
            attempt=attempt,
            iteration=steps,
            place=wire_place(place),
            store=store,
            formed=formed,
            formed_by=formed_by,
            kept=kept or None,
        )
        assignment, reply = self._rewind(request)
        return assignment, None if reply.group is None else _read_answer(read_seat, reply.group)

    def join_again(self, client: Client, error: NotMemberError) -> None:
        """Become a member again, where the manager was started again with a state that lacks this worker.

        Args:
            client: The caller's client of the manager; may be called from any thread.
            error: The error that says so, which is raised where that is not the reason.

        Raises:
            InvalidRequestError: Others have its name.
            ReleasedError: The job has ended well meanwhile.
        """
        if self._leaving:
            raise error
        try:
            client.call("resume", self._again, bulk=memoryview(b""))
        except NotMemberError as again:
            if again.ended is None:
                raise error from None
            self.released = again.ended
            raise ReleasedError(f"this worker was released: {again.ended}") from None
        self._log.warning("the manager did not know this worker any more (%s); it has joined again", error)

    @property
    def reconnects(self) -> int:
        """Return how often a connection for calls was made again; may be called from any thread."""
        clients = {self._client, self._control}
        return sum(max(0, client.connections - 1) for client in clients)

    def must_recover(self, attempt: int) -> None:
        """Note that the manager wants the job to recover into an attempt; may be called from any thread."""
        with self._change:
            if attempt <= self.attempt:
                return
            self._recover = max(attempt, self._recover or 0)
            self._change.notify_all()
        if self._fence is None or attempt <= self._fenced:
            return
        if self._fencing is None or not self._fencing.is_alive():
            # In a thread of its own, since a shard may be unreachable for long and heartbeats must go on.
            self._fencing = threading.Thread(
                target=self._fence_shards, args=(attempt,), name="evenpace-fence", daemon=True
            )
            self._fencing.start()

    def fail(self, error: EvenpaceError) -> None:
        """Note an error after which this worker cannot go on; may be called from any thread."""
        with self._change:
            self._failure = error
            self._change.notify_all()
        self._on_failure(error)

    # -- within

    def _rewind(self, request: Any) -> tuple[Assignment | None, Any]:
        """Enter another attempt; return its first assignment and the whole answer."""
        reply = self._call_patiently(self._control, "rewind", request)
        with self._change:
            self.attempt = request.attempt
            self._planned.clear()
            self._recover = None
        self._note_reply(reply)
        return self.next(), reply

    def _fence_shards(self, attempt: int) -> None:
        """Fence the shards, so that the thread that trains does not wait there in vain."""
        assert self._fence is not None
        try:
            self._fence(attempt)
            self._fenced = attempt
        except EvenpaceError as error:
            if not self._leaving:
                self._log.warning("attempt %d: the shards cannot be fenced from here: %s", attempt, error)

    def _report_all(self) -> None:
        """Send one report after the other, in a thread, until this worker leaves or a report fails."""
        while (finished := self._reports.get()) is not None and not self._leaving:
            if finished.report.attempt != self.attempt:
                continue
            try:
                self._call_report(self._request(finished, self._last_assigned))
            except Exception as error:  # noqa: BLE001 - raised again by `next`, in the thread that trains
                if self._leaving:
                    break
                if finished.report.attempt != self.attempt:
                    continue  # the job was rewound meanwhile
                self.fail(error if isinstance(error, EvenpaceError) else _reporting_failed(error))
                return
        self._report_last(finished)

    def _report_last(self, finished: _Finished | None) -> None:
        """Send the reports that were not answered or not sent, of which `finished` is the first.

        They are answered at once, since they ask for no further assignment.
        """
        requests = [] if self._unanswered is None else [self._unanswered]
        while finished is not None:
            if not requests or requests[-1].iteration != finished.report.iteration:
                requests.append(self._request(finished))
            finished = self._reports.get()  # the last is None, which `leave` has put
        deadline = time.monotonic() + _LAST_REPORTS_SECONDS
        try:
            for request in requests:
                request.known = None
                if request.attempt == self.attempt:
                    self._control.call("report", request, timeout=max(0.01, deadline - time.monotonic()))
        except EvenpaceError as error:
            self._log.debug("the last reports: %s", error)

    def _finished(self, report: Report, seconds: Callable[[], float]) -> _Finished:
        if report.maximum is not None:
            self._maximum = min(report.maximum, self._maximum or report.maximum)
        return _Finished(report, seconds)

    def _call_report(self, request: Any) -> None:
        """Send a report, unless its answer is due already, and take the answer."""
        self._unanswered = request
        try:
            reply = self._due_answer() or self._call_patiently(
                self._client, "report", request, wanted=lambda: request.attempt == self.attempt
            )
        finally:
            if not self._leaving:
                self._unanswered = None
        if reply.reported_iteration != request.iteration:
            raise ProtocolError(
                f"the manager answered for iteration {reply.reported_iteration}, not {request.iteration}"
            )
        if reply.recover is None and request.maximum == self._maximum:
            self._maximum = None
        if self.attempt == request.attempt:  # else the job was rewound meanwhile
            self._note_reply(reply)
            if self._lookahead and reply.recover is not None:
                self.must_recover(reply.recover)
        if reply.lost:
            self._on_lost(reply.lost)

    def _due_answer(self) -> Any:
        """Wait for the answer to the report that was sent; return None where it is to be sent again."""
        if not self._is_due:
            return None
        self._is_due = False
        try:
            reply = self._client.receive(deadline=time.monotonic() + self._timeout)
        except (ConnectionLostError, UnavailableError, NotYetError, NotMemberError):
            return None
        except DeadlineExceededError:
            if not self.was_paused:
                raise
            return None
        self._check_echo(reply.identity)
        return reply

    def _drop_answer(self) -> None:
        """Make way for another call, where an answer is due: the report is repeated after it."""
        if self._is_due:
            self._is_due = False
            self._client.close()

    def _request(self, finished: _Finished, known: int | None = None) -> Any:
        report = replace(finished.report, batch_processing_time=finished.seconds(), maximum=self._maximum)
        return wire_report(self._identity, report, known)

    def _note_reply(self, reply: Any) -> None:
        """Take the assignments, release or recovery of an answer."""
        self._check_echo(reply.identity)
        given = [] if reply.assignment is None else [reply.assignment]
        assignments = [_read_answer(read_assignment, each) for each in (*given, *(reply.ahead or ()))]
        if not (assignments or reply.report_on or reply.released is not None or reply.recover is not None):
            raise ProtocolError("the manager answered with neither an assignment nor a release")
        with self._change:
            # For good: an answer to a later report may be a manager's that has forgotten it.
            self.released = reply.released if self.released is None else self.released
            later = [assignment.attempt for assignment in assignments if assignment.attempt != self.attempt]
            if reply.recover is not None or later:
                self._recover = max(reply.recover or 0, self._recover or 0, *later)
            elif assignments:
                self._planned.extend(assignments)
                self._last_assigned = assignments[-1].iteration
            self._change.notify_all()

    def _call_patiently(
        self, client: Client, method: str, request: Any, wanted: Callable[[], bool] = lambda: True
    ) -> Any:
        """Call the manager as a member; while the job is paused, repeat the call without a time-out."""
        if client is self._client:
            self._drop_answer()
        on_wait = _WaitLog(self._identity.job, "to go on", _QUIET_SECONDS, self._log)
        while True:
            try:
                reply = client.call(method, request, wanted=wanted, on_wait=on_wait)
                break
            except NotMemberError as error:
                self.join_again(client, error)
            except DeadlineExceededError:
                if self._leaving or not self.was_paused:
                    raise
        self._check_echo(reply.identity)
        return reply

    @property
    def was_paused(self) -> bool:
        """Return whether the job was paused or held up within the time-out that is over."""
        return time.monotonic() - self.paused_at < self._timeout

    def _is_decided(self) -> bool:
        return (
            bool(self._planned)
            or self._failure is not None
            or self.released is not None
            or self._recover is not None
        )

    def _check_echo(self, echoed: Any) -> None:
        if echoed != self._identity:
            raise ProtocolError(f"an answer for {echoed}, not for {self._identity}")


def _read_answer(read: Callable[[Any], T], struct: Any) -> T:
    """Read a struct of the manager's answer; raise ProtocolError if it is invalid."""
    try:
        return read(struct)
    except InvalidRequestError as error:
        raise ProtocolError(f"the manager's answer makes no sense to this worker: {error}") from error


def _reporting_failed(error: Exception) -> EvenpaceError:
    """Make the error of a report that failed in the thread, as when a GPU's time cannot be measured."""
    failure = EvenpaceError(f"this worker cannot report any more: {error}")
    failure.__cause__ = error
    return failure
