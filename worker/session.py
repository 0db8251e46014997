"""A worker's session: its membership with the manager, and its part in the exchange of gradients.

It follows Alg. 3 of LB-BSP, and knows neither frameworks nor gradients. A framework's adapter lets the
exchange have the gradient, and calls `finish_iteration`. Before, a loader, or a client without one, calls
`begin_iteration`.
"""

import logging
import math
import threading
import uuid
from collections.abc import Callable, Sequence

import idl
from idl.errors import InvalidRequestError, RewoundError
from idl.layout import Group
from idl.plan import Assignment, JobSpec, Resume, Scaling
from idl.records import Report
from idl.synchronisation import Synchronisation
from rpc.client import Client
from rpc.places import Where
from worker.config import JobCheckpoint, SessionConfig, default_worker_name
from worker.exchanges.all_reduce import AllReduce
from worker.exchanges.base import Exchange
from worker.exchanges.parameter_server import ParameterServer
from worker.gradient_norms import OwnNorms
from worker.learning_rates import Factor, unscaled
from worker.limits import Limits
from worker.membership import Membership
from worker.meter import Meter
from worker.resources.device import as_kind, cpu_kind
from worker.shard_clients import ShardClients

__all__ = ["JobCheckpoint", "Session", "SessionConfig", "default_worker_name"]

log = logging.getLogger(__name__)


class Session:
    """One worker's part in one job.

    Args:
        config: The session's settings.
        exchange: How this worker's gradients meet the others'; None for the parameter server that the
            settings name, or without one, for an all-reduce.

    Attributes:
        config: The session's settings.
        incarnation: This session's id; no other session ever has it.
        assignment: This worker's part of the current iteration; None before `join`, and once released.
        synchronisation: How the job's workers wait for each other, as the manager answered to `join`.
        norms: Norms of this worker's gradients, for the gradient noise.
        meter: Measures this worker's iterations.
        limits: What this worker can take.
        exchange: This worker's part in the exchange of gradients.
        failed: Whether this worker's script has ended by an error, which `close` tells the manager.
        before_training: Functions that are called once, when all is ready for the first iteration.
        before_batch: Functions that are called before the loop gets its part of a batch.
    """

    def __init__(self, config: SessionConfig, exchange: Exchange | None = None) -> None:
        self.config = config
        self.incarnation = uuid.uuid4().hex
        self.assignment: Assignment | None = None
        self.synchronisation = Synchronisation()
        self.norms = OwnNorms()
        self.meter = Meter(self.log_fields)
        self.limits = Limits(config.bounds, self.log_fields)
        self.exchange = exchange or self._make_exchange()
        self.failed = False
        self.before_training: list[Callable[[], None]] = []
        self.before_batch: list[Callable[[], None]] = []
        self._spec: JobSpec | None = None
        self._resumed: JobCheckpoint | None = None
        self._device: str | None = None
        self._threads: int | None = None
        self._lr_factor: Factor = unscaled
        self._run = ""
        self._begun: Assignment | None = None  # the assignment that the loop was given
        self._finished = -1  # the latest iteration that the loop has gone through
        self._warned_of_values = False
        self._training = False
        self._closing = threading.Lock()
        self._closed = False
        self._identity = idl.common.Identity(config.job, config.worker, self.incarnation)
        self._membership = Membership(
            self._client(idl.batchsize_manager.BatchSizeManager, config.manager, "BatchSizeManager"),
            self._identity,
            config.barrier_timeout,
            self.exchange.forfeit,
            self.exchange.abandon,
            self.exchange.fence,
            self.log_fields,
        )

    @property
    def spec(self) -> JobSpec | None:
        """Return the data that the job trains on, and its order; None before a loader has declared it."""
        return self._spec

    @property
    def run(self) -> str:
        """Return the name of the job's run, different for each start of the job; empty before `join`."""
        return self._run

    @property
    def reconnects(self) -> int:
        """Return how often a connection to a service was made again; may be called from any thread."""
        return self._membership.reconnects + self.exchange.reconnects

    @property
    def sums_exactly(self) -> bool:
        """Return whether gradients are summed in fixed point, as the manager answered to `join`."""
        return self.synchronisation.exact

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
        if self._run:
            fields |= {"run": self._run, "attempt": self._membership.attempt}
        assignment = self.assignment
        return fields if assignment is None else fields | {"iteration": assignment.iteration}

    def declare(self, spec: JobSpec) -> None:
        """Set the data that the job trains on, and its order.

        Raises:
            InvalidRequestError: Another loader has set it.
        """
        if self._spec is not None:
            raise InvalidRequestError(
                "this worker has an evenpace loader already; a job has one, for its training data "
                "(use the framework's own for evaluation)"
            )
        self._spec = spec

    def resume(self, checkpoint: JobCheckpoint) -> None:
        """Resume a saved job; to be called before `join`.

        Raises:
            InvalidRequestError: The training has begun, or the checkpoint is of another job.
        """
        if self.assignment is not None:
            raise InvalidRequestError("a checkpoint must be loaded before the training begins")
        if checkpoint.spec != self._spec:
            raise InvalidRequestError(f"the checkpoint is of {checkpoint.spec}, but this is {self._spec}")
        self._resumed = checkpoint

    def describe(self, device: str | None = None, threads: int | None = None) -> None:
        """Set what this worker computes with, which `join` tells the manager; what is left out stays.

        Args:
            device: The kind of its GPU, in words.
            threads: The threads that it computes with on its CPU.
        """
        self._device = device or self._device
        self._threads = threads or self._threads

    def scale_lr_by(self, factor: Factor) -> None:
        """Set the function that gives the factor of learning rates; see `worker.learning_rates`."""
        self._lr_factor = factor

    @property
    def scaling(self) -> Scaling:
        """The comparison of the present batch with batches of the size that the script gives.

        Raises:
            InvalidRequestError: There is no present batch.
        """
        if self.assignment is None or self._spec is None:
            raise InvalidRequestError("there is no batch: this worker is not in a running job")
        now = self.assignment
        return now.scaling or Scaling(self._spec.total_batch_size, 1.0, float(now.iteration))

    @property
    def lr_scale(self) -> float:
        """The factor of learning rates in the present iteration, by the function that `scale_lr_by` has set.

        Raises:
            InvalidRequestError: There is no present batch, or a script's function gave no factor.
        """
        scaling = self.scaling
        assert self._spec is not None
        return self._lr_factor(scaling, self._spec.total_batch_size)

    def checkpoint(self) -> JobCheckpoint:
        """Return the checkpoint to be saved beside the parameters, between two iterations.

        Raises:
            InvalidRequestError: The training has not begun, or this worker was released.
        """
        if self.assignment is None or self._spec is None:
            raise InvalidRequestError("there is nothing to save: this worker is not in a running job")
        now = self.assignment
        position = None if now.batch_start is None else (now.epoch, now.batch_start)
        learned, batch_size = self._membership.checkpoint()
        batch_size = batch_size or self._spec.total_batch_size
        progress = None if now.scaling is None else now.scaling.progress
        return JobCheckpoint(now.iteration, learned, self._spec, position, batch_size, progress)

    def join(self) -> Assignment:
        """Become a member of the job, and wait for the first assignment, until all workers have joined.

        Raises:
            InvalidRequestError: The manager refuses, with the reason; or this worker was released.
            ConnectionLostError: The manager cannot be reached.
        """
        if self.assignment is not None:
            return self.assignment
        if self.released is not None:
            raise InvalidRequestError(f"this worker was released: {self.released}")
        if self._spec is None:
            raise InvalidRequestError("join before a loader has said what is trained on")
        saved = self._resumed
        joined = self._membership.join(
            self._spec,
            self.config.bounds,
            Resume(saved.iteration, saved.position, saved.batch_size, saved.progress) if saved else None,
            saved.learned if saved else b"",
            exchange=self.exchange.kind,
            device=self.config.device or as_kind(self._device or "") or cpu_kind(),
            threads=self._threads,
        )
        self._run = joined.run
        self.synchronisation = joined.synchronisation
        self.exchange.joined(joined, self._identity, self.config.host or joined.host)
        self._membership.start_heartbeat()
        try:
            self.assignment = self._membership.next()
        except RewoundError as error:
            self._recover(error)
        if self.assignment is None:
            raise InvalidRequestError(f"this worker was released: {self.released}")
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
        if self._training:
            return
        while not self._training:
            assignment = self.join()
            try:
                self.exchange.open(assignment, self._first_iteration)
                self.exchange.take(assignment)
                self._training = True
            except RewoundError as error:
                self._recover(error)
        for act in self.before_training:
            act()
        self.meter.begin_training()

    def begin_iteration(self, instead: Assignment | None = None) -> None:
        """Note that the loop gets the samples of `assignment`, and measure from now on; loaders call it.

        If there is another assignment afterwards, since the job was rewound, it is to be called again for it.

        Args:
            instead: What this worker computes in place of its assignment, in an experiment.
        """
        self.assignment = self._begun = instead or self.assignment
        try:
            for act in self.before_batch:
                act()
        except RewoundError as error:
            self._recover(error)
        self.meter.begin_iteration()

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
        if done is None or not self._training:
            raise InvalidRequestError("finish_iteration before the training has started")
        if self._begun is not done:
            raise InvalidRequestError(
                f"a step of iteration {done.iteration}, whose samples were not loaded: take one step for "
                f"each batch, within the loop over the loader"
            )
        self.meter.end_compute(done)
        try:
            self._finish(done, groups)
        except RewoundError as error:
            self._recover(error)
        self.meter.resume()
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
        """Contribute, report, and take.

        Raises:
            RewoundError: The job was rewound meanwhile.
        """
        self._finished = max(self._finished, done.iteration)
        self.exchange.contribute(done, groups, self.lr_scale)
        with self.meter.reporting(done) as measured:
            norms, not_finite = self.norms.take(), self.norms.take_not_finite()
            if not_finite is not None:
                self._warn_of_values(not_finite)
            self._membership.report(
                Report(
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
                    not_finite=not_finite,
                    communication_time=measured.communicated,
                ),
                measured.seconds,
            )
            self.assignment = now = self._membership.next()
        first_size = None if self._spec is None else self._spec.total_batch_size
        self.meter.finish(done, now, self._membership.noise_scale, first_size)
        self._note_release()
        if now is None:
            self.exchange.settle(done)
        else:
            self.exchange.take(now)

    def _warn_of_values(self, iteration: int) -> None:
        """Warn, once, that this worker's gradient was not finite."""
        if not self._warned_of_values:
            self._warned_of_values = True
            log.warning(
                "this worker's gradient for iteration %d has a NaN or an infinity; unless a GradScaler skips "
                "the step, so have the parameters after it. The manager's log names who was the first",
                iteration,
                extra=self.log_fields(),
            )

    def _recover(self, error: RewoundError) -> None:
        """Recover the job into another attempt, and continue there."""
        first = None if self._training else self._first_iteration
        self.assignment = self.exchange.recover(self._membership, error, first)
        self.meter.restart()
        self.norms.take()  # and drop it: the iteration under way may be done again
        self._note_release()

    def _note_release(self) -> None:
        if self.released is not None:
            log.warning("released: %s", self.released, extra=self.log_fields())

    @property
    def _first_iteration(self) -> int:
        """Return the job's first iteration: that of the checkpoint it resumes from, or 0."""
        return self._resumed.iteration if self._resumed else 0

    def _make_exchange(self) -> Exchange:
        if not self.config.shards:
            return AllReduce()
        definition, name = idl.parameter_server.ParameterServer, "parameter server"
        clients = [self._client(definition, address, name) for address in self.config.shards]
        timeout = self.config.barrier_timeout
        shards = ShardClients(clients, timeout, self.log_fields)
        return ParameterServer(shards, self.norms, self.meter, timeout, self.log_fields)

    def _client(self, definition: type, where: Where, name: str) -> Client:
        return Client(
            definition,
            where,
            name,
            connect_timeout=self.config.connect_timeout,
            call_timeout=self.config.barrier_timeout,
            credentials=self.config.credentials,
            silence=self.config.silence,
            log_fields=self.log_fields,
        )
