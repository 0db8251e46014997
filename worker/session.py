"""A worker's session: its membership with the manager, and its part in the exchange of gradients.

It follows Alg. 3 of LB-BSP, and knows neither frameworks nor gradients. A framework's adapter lets the
exchange have the gradient, and calls `finish_iteration`. Before, a loader, or a client without one, calls
`begin_iteration`.
"""

import contextlib
import math
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import idl
from idl.errors import DeadlineExceededError, InvalidRequestError, ReleasedError, RewoundError
from idl.layout import Group
from idl.plan import Assignment
from idl.records import Report
from idl.synchronisation import Synchronisation
from rpc.field_log import FieldLog
from worker.config import JobCheckpoint, SessionConfig, default_worker_name
from worker.connections import make_exchange, make_manager_client
from worker.exchanges.base import Exchange
from worker.gradient_norms import OwnNorms
from worker.limits import Limits
from worker.membership import Membership
from worker.meter import Measured, Meter
from worker.resources.device import Device
from worker.training import Training
from worker.weights import Weights

__all__ = ["JobCheckpoint", "Session", "SessionConfig", "default_worker_name"]


class Session:
    """One worker's part in one job.

    Args:
        exchange: How this worker's gradients meet the others'; None for the parameter server that the
            settings name, or without one, for an all-reduce.
    """

    def __init__(self, config: SessionConfig, exchange: Exchange | None = None) -> None:
        self.config = config  # the session's settings
        self.incarnation = uuid.uuid4().hex  # this session's id; no other session ever has it
        # This worker's part of the current iteration; None before `join`, and once released.
        self.assignment: Assignment | None = None
        # How the job's workers wait for each other, as the manager answered to `join`.
        self.synchronisation = Synchronisation()
        self.run = ""  # the name of the job's run, different for each start of the job; empty before `join`
        self.device = Device(config.device)  # what this worker computes with
        self.log = FieldLog(__name__, self.log_fields)  # its lines are about this worker
        self.norms = OwnNorms(self.log)  # norms of this worker's gradients, for the gradient noise
        self.meter = Meter(self.log)  # measures this worker's iterations
        self.limits = Limits(config.bounds, self.log)  # what this worker can take
        self.weights = Weights()  # what this worker's gradients are means over
        # This worker's part in the exchange of gradients.
        self.exchange = exchange or make_exchange(config, self.norms, self.meter, self.weights, self.log)
        # Whether this worker's script has ended by an error, which `close` tells the manager.
        self.failed = False
        # Functions that are called before this worker becomes a member.
        self.before_join: list[Callable[[], None]] = []
        # Functions that are called once, when all is ready for the first iteration.
        self.before_training: list[Callable[[], None]] = []
        # Functions that are called before the loop gets its part of a batch.
        self.before_batch: list[Callable[[], None]] = []
        self._begun: Assignment | None = None  # the assignment that the loop was given
        self._reported: Assignment | None = None  # the assignment that was reported before its step
        self._finished = -1  # the latest iteration that the loop has gone through
        self._has_started = False  # to train
        self._closing = threading.Lock()
        self._closed = False
        self._identity = idl.common.Identity(config.job, config.worker, self.incarnation)
        self._membership = Membership(
            make_manager_client(config, self.log),
            self._identity,
            config.barrier_timeout,
            self.exchange.forfeit,
            self.exchange.abandon,
            self.exchange.fence,
            self.log,
        )
        # What the job trains on, and how far it is.
        self.training = Training(lambda: self.assignment, self._membership.checkpoint)

    @property
    def reconnects(self) -> int:
        """Return how often a connection to a service was made again; may be called from any thread."""
        return self._membership.reconnects + self.exchange.reconnects

    @property
    def is_begun(self) -> bool:
        """Return whether the loop was given the samples of the assignment, for which it may take a step."""
        return self.assignment is not None and self._begun is self.assignment

    @property
    def is_repeated(self) -> bool:
        """Return whether the loop has gone through the assignment's iteration, or a later one, before."""
        return self.assignment is not None and self.assignment.iteration <= self._finished

    @property
    def released(self) -> str | None:
        """Return the reason why the manager has released this worker, or None.

        Where the manager plans ahead, it is None until the remaining assignments are done.
        """
        return self._membership.released if self.assignment is None else None

    def log_fields(self) -> dict[str, object]:
        """Return the structured fields of log lines about this worker; may be called from any thread."""
        fields: dict[str, object] = {"job": self.config.job, "worker": self.config.worker}
        if self.run:
            fields |= {"run": self.run, "attempt": self._membership.attempt}
        assignment = self.assignment
        return fields if assignment is None else fields | {"iteration": assignment.iteration}

    def join(self) -> Assignment:
        """Become a member of the job, and wait for the first assignment, until all workers have joined.

        Raises:
            InvalidRequestError: The manager refuses, with the reason.
            ReleasedError: This worker was released, as by a drain, before it had an assignment.
            ConnectionLostError: The manager cannot be reached.
        """
        if self.assignment is not None:
            return self.assignment
        if self.released is not None:
            raise ReleasedError(f"this worker was released: {self.released}")
        for act in self.before_join:
            act()
        saved = self.training.resumed
        joined = self._membership.join(
            replace(self.training.declared, samples=self.training.samples()),
            self.config.bounds,
            saved.point if saved else None,
            saved.learned if saved else b"",
            exchange=self.exchange.kind,
            device=self.device.kind,
            threads=self.device.threads,
        )
        self.training.samples = tuple  # no longer needed: a session may outlive its data set
        self.run = joined.run
        self.synchronisation = joined.synchronisation
        self.weights.is_exact = joined.synchronisation.exact
        self.exchange.joined(joined, self._identity, self.config.host or joined.host)
        self._membership.start_heartbeat()
        try:
            self.assignment = self._membership.next()
        except RewoundError as error:
            self._recover(error)
        if self.assignment is None:
            raise ReleasedError(f"this worker was released: {self.released}")
        self._membership.is_between = True
        return self.assignment

    def planned(self, iteration: int) -> Assignment | None:
        """Return this worker's assignment of the current or a later iteration; None if not planned yet."""
        current = self.assignment
        if current is not None and current.iteration == iteration:
            return current
        return self._membership.planned(iteration)

    def start_training(self) -> None:
        """Join if necessary, open the exchange, and start to measure; nothing happens in later calls.

        Raises:
            InvalidRequestError: A service refuses, or the exchange has no parameters to start from.
        """
        if self._has_started:
            return
        while not self._has_started:
            assignment = self.join()
            self._membership.is_between = False
            with self._recovering():
                self.exchange.open(assignment, self.training.first_iteration)
                self._take(assignment)
                self._has_started = True
        for act in self.before_training:
            act()
        self.meter.begin_training()
        self._membership.is_between = True

    def begin_iteration(self, instead: Assignment | None = None) -> None:
        """Note that the loop gets the samples of `assignment`, and measure from now on; loaders call it.

        If there is another assignment afterwards, since the job was rewound, it is to be called again for it.

        Args:
            instead: What this worker computes in place of its assignment, in an experiment.
        """
        self._membership.is_between = False
        self.assignment = self._begun = instead or self.assignment
        self.weights.begin(self.assignment)
        with self._recovering():
            for act in self.before_batch:
                act()
        self.meter.stopwatch.start()

    def report_before_step(self) -> None:
        """Report the present assignment before this worker has made its step, which the others do not need.

        So the step is made while reports and the next assignment are on their way; `finish_iteration` follows
        as usual. What the step takes counts with the next assignment. Called again, or without an assignment
        that was begun, it does nothing.
        """
        done = self.assignment
        if done is None or not self.is_begun or self._reported is done:
            return
        measured = self.meter.take(done)
        self._membership.send_report(self._report(done, measured), measured.seconds)
        self._reported = done
        self._membership.is_between = True  # whatever else the script does with the batch, it has its part
        self.meter.stopwatch.start()

    def finish_iteration(self, groups: Sequence[Group] | None = None) -> Assignment | None:
        """Contribute the gradient, report, and take the new parameters (Alg. 3, from line 5 on).

        The next assignment may be another slice of the same iteration, whose worker has left: it is computed
        with the present parameters. It may also be an earlier iteration, where the job was rewound.

        Args:
            groups: The parameter groups, if their options have changed; every worker's loop is to set the
                same ones in an iteration.

        Returns:
            The next assignment; None if this worker is released.

        Raises:
            NotMemberError: This worker was removed from the job.
            InvalidRequestError: A service refuses, or the job cannot go on; the assignment was not begun; or
                its gradient is not complete.
            ConnectionLostError, DeadlineExceededError: A service cannot be reached, or does not answer.
        """
        done = self.assignment
        if done is None or not self._has_started:
            raise InvalidRequestError("finish_iteration before the training has started")
        if not self.is_begun:
            raise InvalidRequestError(
                f"a step of iteration {done.iteration}, whose samples were not loaded: take one step for "
                f"each batch, within the loop over the loader"
            )
        self._membership.is_between = False
        self.meter.tally.end_compute(done)
        with self._recovering():
            self._finish(done, groups)
        self.meter.resume()
        self._membership.is_between = True
        return self.assignment

    def close(self) -> None:
        """Leave the job and close the connections; a `join` in another thread ends with an error.

        Errors are only logged.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._membership.leave(failed=self.failed)
            self.assignment = None
            self.meter.close()
            self._membership.close()
            self.exchange.close()

    def _finish(self, done: Assignment, groups: Sequence[Group] | None) -> None:
        """Contribute, report, and take (RewoundError: the job was rewound meanwhile)."""
        self._finished = max(self._finished, done.iteration)
        self.exchange.contribute(done, groups, self.training.lr_scale)
        is_reported = self._reported is done
        if is_reported:
            self.meter.stopwatch.stop()
        else:
            measured = self.meter.take(done)
        with self.meter.reporting(done):
            if is_reported:
                self._membership.take_answer()
            else:
                self._membership.report(self._report(done, measured), measured.seconds)
            self.assignment = now = self._membership.next()
        first_size = self.training.declared.total_batch_size
        self.meter.finish(done, now, self._membership.noise_scale, first_size)
        self._note_release()
        if now is None:
            self.exchange.settle(done)
        else:
            self._take(now)

    def _take(self, now: Assignment) -> None:
        """Take the parameters for an assignment, for whose step a script that does something else is awaited.

        Raises:
            RewoundError: The job was rewound meanwhile.
            DeadlineExceededError: The other workers kept this one waiting for too long.
        """
        while True:
            try:
                return self.exchange.take(now)
            except DeadlineExceededError:
                if not self._membership.was_paused:
                    raise

    def _report(self, done: Assignment, measured: Measured) -> Report:
        norms = self.norms.take()
        return Report(
            done.iteration,
            batch_processing_time=math.nan,
            waiting_time=measured.waited,
            cpu_usage=measured.cpu,
            memory_usage=measured.memory,
            maximum=self.limits.take_learned(),
            attempt=done.attempt,
            # Without the batch's begin it is no place in the batch.
            start=done.start if done.batch_start is not None else None,
            at_once=self.limits.at_once if self.limits.at_once < done.at_once else None,
            shards=self.exchange.digest,
            norms=norms,
            not_finite=self.norms.take_not_finite(),
            communication_time=measured.communicated,
            costs=self.training.costs_after(done),
            **measured.backward._asdict(),
        )

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """Recover where a block finds the job rewound; have no assignment where the job has ended well."""
        try:
            try:
                yield
            except RewoundError as error:
                self._recover(error)
        except ReleasedError:
            self.assignment = None
            self._note_release()

    def _recover(self, error: RewoundError) -> None:
        """Recover the job into another attempt, and continue there."""
        self.assignment = self.exchange.recover(self._membership, error, self.training.first_iteration)
        self.meter.restart()
        self.norms.take()  # and drop it: the iteration under way may be done again
        self._note_release()

    def _note_release(self) -> None:
        if self.released is not None:
            self.log.warning("released: %s", self.released)
