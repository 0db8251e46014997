"""A worker's membership in a job: it joins, reports each iteration, and is told what to do next.

It speaks to the BatchSizeManager alone. In the paper's blocking mode a report is a call that waits for the
answer. Where the manager plans ahead, a thread reports while the next iterations are computed (LB-BSP,
section 4). A manager that is away is waited for, as long as for the other workers.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import idl
from idl.bounds import Bounds
from idl.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    InvalidRequestError,
    ProtocolError,
    RewoundError,
)
from idl.plan import Assignment, JobSpec, Resume
from idl.translation import (
    read_assignment,
    read_synchronisation,
    wire_bounds,
    wire_report,
    wire_resume,
    wire_spec,
)
from rpc.client import Client
from worker.heartbeat import Heartbeat
from worker.messages import Finished, Joined

__all__ = ["Finished", "Joined", "Membership"]

T = TypeVar("T")

log = logging.getLogger(__name__)

_wire = idl.batchsize_manager

_LAST_REPORTS_SECONDS = 1.0  # to have the last reports answered, before the worker leaves
_SILENT_SECONDS = 5.0  # of waiting to be let in, before the user is told


class Membership:
    """One worker's membership in one job.

    Args:
        client: Of the manager; used by one thread at a time.
        identity: This worker's, as the wire has it.
        timeout: Seconds for which the others may keep this worker waiting.
        on_lost: Called with slices that were lost, maybe by the thread that reports.
        on_failure: Called with the error that ended a thread.
        fence: Called with the attempt that the shards are to be fenced with, by any thread; None without a
            parameter server.
        log_fields: Gives what lines of log say beside their message.

    Attributes:
        released: Why the worker was released, once it was.
        attempt: That this worker is in.
        paused: Whether the job is, for all that is known: then this worker waits for as long as it takes.
    """

    def __init__(
        self,
        client: Client,
        identity: Any,
        timeout: float,
        on_lost: Callable[[Sequence[Any]], None],
        on_failure: Callable[[EvenpaceError], None],
        fence: Callable[[int], None] | None = None,
        log_fields: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self.released: str | None = None
        self.attempt = 0
        self.paused = False
        self._client = client
        self._control = client
        self._identity = identity
        self._timeout = timeout
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._fence = fence
        self._log_fields = log_fields
        self._joined: bool | None = None  # None before `join` was called
        self._lookahead = 0
        self._heartbeat_seconds: float | None = None
        self._heartbeat: Heartbeat | None = None
        self._known = -1  # the last iteration that there has been an assignment for
        self._maximum: int | None = None  # samples, as the manager has still to learn
        self._change = threading.Condition()  # guards what follows, `released` and `attempt`
        self._planned: deque[Assignment] = deque()  # what has not been begun yet
        self._failure: EvenpaceError | None = None
        self._recover: int | None = None  # the attempt that the job is to be brought into
        self._fenced = 0  # the last attempt that the shards were fenced with from here
        self._fencing: threading.Thread | None = None
        self._reports: queue.SimpleQueue[Finished | None] = queue.SimpleQueue()
        self._unanswered: Any = None  # the report that the thread waits with
        self._leaving = False
        self._thread: threading.Thread | None = None

    def join(
        self,
        spec: JobSpec,
        bounds: Bounds,
        resume: Resume | None = None,
        learned: bytes = b"",
        *,
        unreleasable: bool = False,
        device: str | None = None,
    ) -> Joined:
        """Become a member; answered when all workers are there.

        Args:
            spec: What is trained on.
            bounds: What batch sizes this worker can take.
            resume: Where a saved job goes on.
            learned: What the manager had learned by then.
            unreleasable: Whether the others could not go on without this worker.
            device: Of which kind it is, in words; None where it is not to be said.

        Raises:
            InvalidRequestError: The manager refuses, and says why.
            ConnectionLostError: It cannot be reached.
        """
        request = _wire.JoinRequest(
            identity=self._identity,
            job=wire_spec(spec),
            bounds=wire_bounds(bounds),
            resume=None if resume is None else wire_resume(resume, len(learned)),
            unreleasable=unreleasable or None,
            device=device,
            heartbeats=True,
        )
        self._joined = False
        waiting = threading.Timer(_SILENT_SECONDS, self._tell_that_it_waits)
        waiting.daemon = True
        waiting.start()
        try:
            while (reply := self._client.call("join", request)).resume and resume is not None:
                self._client.call("resume", request, bulk=memoryview(learned))
        finally:
            waiting.cancel()
        self._joined = True
        self._client.set_connect_timeout(self._timeout)
        if reply.assignment is not None:
            self.attempt = reply.assignment.attempt or 0
        self._lookahead = reply.lookahead or 0
        self._heartbeat_seconds = reply.heartbeat or None
        self._take(reply)
        if self._lookahead:
            self._control = self._client.twin()  # the thread waits for answers through the other
            self._thread = threading.Thread(target=self._report_all, name="evenpace-reports", daemon=True)
            self._thread.start()
        synchronisation = _understood(read_synchronisation, reply.synchronisation)
        return Joined(reply.run, synchronisation, self._lookahead, list(reply.lost))

    def start_heartbeat(self) -> None:
        """Tell the manager from now on that this worker lives, if it wants to know; see `heartbeat`."""
        if self._heartbeat_seconds is not None:
            twin = self._client.twin()
            self._heartbeat = Heartbeat(twin, self._identity, self._heartbeat_seconds, self, self._log_fields)

    def report(self, finished: Finished) -> None:
        """Report an iteration: here, or where the manager plans ahead, by the thread."""
        if finished.maximum is not None:
            self._maximum = min(finished.maximum, self._maximum or finished.maximum)
        if self._lookahead:
            self._reports.put(finished)
        else:
            self._report(finished)

    def next(self) -> Assignment | None:
        """What to do next; None if the worker is released. Waits until that is known.

        Raises:
            RewoundError: The manager wants the job to be brought into another attempt.
            EvenpaceError: Reporting has failed.
            DeadlineExceededError: The others kept this worker waiting for too long.
        """
        with self._change:
            while not self._change.wait_for(self._is_decided, self._timeout):
                if self.paused:
                    continue
                raise DeadlineExceededError(
                    f"there is no assignment after iteration {self._known} within {self._timeout:g} s"
                )
            if self._recover is not None:
                raise RewoundError("the manager has begun another attempt", self._recover)
            if self._planned:
                return self._planned.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def planned(self, iteration: int) -> Assignment | None:
        """The assignment of an iteration to come, if there is one yet."""
        with self._change:
            return next((a for a in self._planned if a.iteration == iteration), None)

    def checkpoint(self) -> tuple[bytes, int | None]:
        """What the manager has learned, and samples of a whole batch, for `join` to resume from."""
        reply = self._control.call("checkpoint", _wire.CheckpointRequest(identity=self._identity))
        self._check_echo(reply.identity)
        return bytes(reply.learned), reply.total_batch_size

    def leave(self) -> None:
        """Say goodbye; what fails now is only logged. From any thread, to one that waits in `join`."""
        if self._joined is None:
            return
        self._leaving = True
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
                self._control.call("leave", _wire.LeaveRequest(identity=self._identity), timeout=5.0)
        except EvenpaceError as error:
            log.debug("leave: %s", error, extra=self._log_fields())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._control.close()

    # -- recovery; see `worker.recovery`

    def recover(self, attempt: int) -> int:
        """Have another attempt begun than `attempt`, and say which; waits for a manager that is away."""
        request = _wire.RecoverRequest(identity=self._identity, attempt=attempt)
        return int(self._call_patiently(self._control, "recover", request).attempt)

    def has_trained(self) -> bool:
        """Whether the manager knows of an iteration that is complete."""
        request = _wire.HistoryRequest(job=self._identity.job, first_iteration=0, limit=1)
        return bool(self._control.call("history", request).iterations)

    def rewind(self, attempt: int, iteration: int) -> Assignment | None:
        """Go on in another attempt.

        Args:
            attempt: Which one.
            iteration: Where it may begin, for all that this worker knows.

        Returns:
            What to do next; None if the worker is released.

        Raises:
            RewoundError: There is a later attempt already.
        """
        request = _wire.RewindRequest(identity=self._identity, attempt=attempt, iteration=iteration)
        reply = self._call_patiently(self._control, "rewind", request)
        with self._change:
            self.attempt = attempt
            self._planned.clear()
            self._recover = None
        self._take(reply)
        return self.next()

    @property
    def reconnects(self) -> int:
        """How often a connection for calls had to be made anew; from any thread."""
        clients = {self._client, self._control}
        return sum(max(0, client.connections - 1) for client in clients)

    def must_recover(self, attempt: int) -> None:
        """The manager wants the job to be brought into another attempt; from any thread."""
        with self._change:
            if attempt <= self.attempt:
                return
            self._recover = max(attempt, self._recover or 0)
            self._change.notify_all()
        if self._fence is None or attempt <= self._fenced:
            return
        if self._fencing is None or not self._fencing.is_alive():
            # Heartbeats go on meanwhile: a shard may be away for long.
            self._fencing = threading.Thread(
                target=self._fence_shards, args=(attempt,), name="evenpace-fence", daemon=True
            )
            self._fencing.start()

    def fail(self, error: EvenpaceError) -> None:
        """This worker cannot go on; from any thread."""
        with self._change:
            self._failure = error
            self._change.notify_all()
        self._on_failure(error)

    # -- within

    def _fence_shards(self, attempt: int) -> None:
        """Lest the thread that trains waits at the shards for what will not come."""
        assert self._fence is not None
        try:
            self._fence(attempt)
            self._fenced = attempt
        except EvenpaceError as error:
            log.warning(
                "attempt %d: the shards cannot be fenced from here: %s",
                attempt,
                error,
                extra=self._log_fields(),
            )

    def _tell_that_it_waits(self) -> None:
        if self._client.connected:
            log.info(
                "waiting for job %s to begin: it does once so many workers have joined as the manager wants",
                self._identity.job,
                extra=self._log_fields(),
            )

    def _report_all(self) -> None:
        """The thread: one report after the other, until this worker leaves or one fails."""
        while (finished := self._reports.get()) is not None and not self._leaving:
            if finished.attempt != self.attempt:
                continue
            try:
                self._report(finished)
            except Exception as error:  # noqa: BLE001 - raised again by `next`, in the thread that trains
                if self._leaving:
                    break
                if finished.attempt != self.attempt:
                    continue  # the job was rewound meanwhile: there are earlier iterations to report
                self.fail(error if isinstance(error, EvenpaceError) else _reporting_failed(error))
                return
        self._report_last(finished)

    def _report_last(self, finished: Finished | None) -> None:
        """Tell what there was no answer to, or what was not told; `finished` is the first of these.

        The answers come at once, since no more is asked for than what is planned already.
        """
        requests = [] if self._unanswered is None else [self._unanswered]
        while finished is not None:
            if not requests or requests[-1].iteration != finished.iteration:
                requests.append(self._request(finished))
            finished = self._reports.get()  # the last is None, which `leave` has put
        deadline = time.monotonic() + _LAST_REPORTS_SECONDS
        try:
            for request in requests:
                request.known = None
                if request.attempt == self.attempt:
                    self._control.call("report", request, timeout=max(0.01, deadline - time.monotonic()))
        except EvenpaceError as error:
            log.debug("the last reports: %s", error, extra=self._log_fields())

    def _report(self, finished: Finished) -> None:
        request = self._request(finished, self._known if self._lookahead else None)
        self._unanswered = request
        try:
            reply = self._call_patiently(
                self._client, "report", request, wanted=lambda: finished.attempt == self.attempt
            )
        finally:
            if not self._leaving:
                self._unanswered = None
        if reply.reported_iteration != finished.iteration:
            raise ProtocolError(
                f"the manager answered for iteration {reply.reported_iteration}, not {finished.iteration}"
            )
        if reply.recover is None and request.maximum == self._maximum:
            self._maximum = None
        if self.attempt == finished.attempt:  # else the job was rewound meanwhile
            self._take(reply)
            if self._lookahead and reply.recover is not None:
                self.must_recover(reply.recover)
        if reply.lost:
            self._on_lost(reply.lost)

    def _request(self, finished: Finished, known: int | None = None) -> Any:
        return wire_report(self._identity, finished.report(self._maximum), known)

    def _take(self, reply: Any) -> None:
        """Note what an answer says is next."""
        self._check_echo(reply.identity)
        given = [] if reply.assignment is None else [reply.assignment]
        assignments = [_understood(read_assignment, each) for each in (*given, *(reply.ahead or ()))]
        if not (assignments or reply.report_on or reply.released is not None or reply.recover is not None):
            raise ProtocolError("the manager answered with neither an assignment nor a release")
        with self._change:
            self.released = reply.released
            later = [assignment.attempt for assignment in assignments if assignment.attempt != self.attempt]
            if reply.recover is not None or later:
                self._recover = max(reply.recover or 0, self._recover or 0, *later)
            elif assignments:
                self._planned.extend(assignments)
                self._known = assignments[-1].iteration
            self._change.notify_all()

    def _call_patiently(
        self, client: Client, method: str, request: Any, wanted: Callable[[], bool] = lambda: True
    ) -> Any:
        """Call the manager; while the job is paused, for as long as it takes."""
        while True:
            try:
                reply = client.call(method, request, wanted=wanted)
                break
            except DeadlineExceededError:
                if self._leaving or not self.paused:
                    raise
        self._check_echo(reply.identity)
        return reply

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


def _understood(read: Callable[[Any], T], struct: Any) -> T:
    """What the manager says, read; it is refused as the manager's fault if it makes no sense."""
    try:
        return read(struct)
    except InvalidRequestError as error:
        raise ProtocolError(f"the manager's answer makes no sense to this worker: {error}") from error


def _reporting_failed(error: Exception) -> EvenpaceError:
    """What the thread could not do, such as to measure a time on a GPU that is gone."""
    failure = EvenpaceError(f"this worker cannot report any more: {error}")
    failure.__cause__ = error
    return failure
