"""A worker's session: its membership with the manager, and its parameters at the parameter server, if any.

It follows Alg. 3 of LB-BSP and knows no framework: gradients and parameters are flat arrays. A framework's
adapter fills `gradient`, or calls `accumulate` for each micro-batch; then it calls `finish_iteration`, and
reads the new `parameters`. Before, a loader calls `begin_iteration`, or a client without one. Without a
parameter server the workers all-reduce their gradients, by means of their framework.
"""

import contextlib
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import idl
from idl.errors import InvalidRequestError, NotMemberError, RewoundError, UnavailableError
from idl.exact_sums import add_to
from idl.exchange import FIXED_GROUP, PARAMETER_SERVER
from idl.layout import Group, Layout
from idl.plan import Assignment, JobSpec, Resume, Scaling
from idl.records import Report
from idl.synchronisation import Synchronisation
from rpc.client import Client
from rpc.places import Where
from worker.config import JobCheckpoint, SessionConfig, default_worker_name
from worker.counters import SessionTally
from worker.gradient_norms import OwnNorms, squared_norm
from worker.iteration_times import Recorder, Scalars
from worker.job_recovery import recover
from worker.learning_rates import Factor, scaled, unscaled
from worker.membership import Membership
from worker.optimizer_state import OptimizerState
from worker.resources.device import as_kind, cpu_kind
from worker.resources.monitors import ResourceMonitor
from worker.shard_clients import ShardClients
from worker.step_options import StepOptions
from worker.stopwatch import Stopwatch

__all__ = ["JobCheckpoint", "Session", "SessionConfig", "default_worker_name"]

log = logging.getLogger(__name__)


class Session:
    """One worker's part in one job.

    Attributes:
        config: The session's settings.
        incarnation: This session's id; no other session ever has it.
        assignment: This worker's part of the current iteration; None before `join`, and once released.
        synchronisation: How the job's workers wait for each other, as the manager answered to `join`.
        gradient: (elements,) to be filled with the batch's mean gradient before `finish_iteration`, by the
            adapter or by `accumulate`. Where the job's sums are exact, it has sums as `idl.exact_sums` makes
            them, and is to be filled by `accumulate` or `put_sums`.
        parameters: (elements,) as last pulled from the parameter server.
        before_training: Called once, when everything is ready for the first iteration.
        on_parameters: Called whenever `parameters` has new values, and before an iteration's further slices.
        before_batch: Called before the loop gets its part of a batch.
        stopwatch: Measures the batch processing time.
        processing_time: If set, called once for each iteration; returns a function that returns its batch
            processing time in seconds in place of the stopwatch's, and may be called later by another thread.
        weighted_samples: Samples of the current iteration whose weight is in the gradient; see
            `note_weighting`.
        samples_at_hand: Samples of the micro-batch that is computed at present; None outside of one.
        at_once: Micro-batches of the current iteration that the adapter computes at once.
        most_at_once: Most micro-batches that are to be computed at once, for all that is known of the memory.
        memory_usage: If set, returns the occupied share of the accelerator's memory, 0 to 1, at the end of an
            iteration; it is reported where it is above that of the machine's.
        device: The kind of this worker's GPU, if an adapter has set it; sent to the manager by `join`.
        threads: The threads that this worker computes with on its CPU, likewise.
        norms: Norms of this worker's gradients, for the gradient noise.
        lr_factor: Function that gives the factor of learning rates; see `worker.learning_rates`.
        tally: Counters of this session.
    """

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self.incarnation = uuid.uuid4().hex
        self.assignment: Assignment | None = None
        self.synchronisation = Synchronisation()
        self.gradient: NDArray[Any] = np.empty(0)
        self.parameters: NDArray[Any] = np.empty(0)
        self.before_training: Callable[[], None] = lambda: None
        self.on_parameters: Callable[[], None] = lambda: None
        self.before_batch: Callable[[], None] = lambda: None
        self.stopwatch = Stopwatch()
        self.processing_time: Callable[[], Callable[[], float]] | None = None
        self.weighted_samples = 0
        self.samples_at_hand: int | None = None
        self.at_once = 1
        self.most_at_once = config.bounds.at_once
        self.memory_usage: Callable[[], float] | None = None
        self.device: str | None = None
        self.threads: int | None = None
        self.norms = OwnNorms()
        self.lr_factor: Factor = unscaled
        self.tally = SessionTally(config.bounds.maximum)
        self._monitor = ResourceMonitor()
        self._recorder = Recorder(self.log_fields)
        self._spec: JobSpec | None = None
        self._resumed: JobCheckpoint | None = None
        self._run = ""
        self._lost: Sequence[Any] = ()  # slices that were lost before this worker joined
        self._waited = 0.0  # seconds in the parameter server since the last report
        self._samples = 0  # finished since `take_samples`
        self._maximum: int | None = None  # samples, if it was learned since the last report
        self._options = StepOptions()
        self._layout: Layout | None = None
        self._summed: Assignment | None = None  # the assignment that `gradient` has sums of
        self._summed_samples = 0  # of it
        self._refused = -1  # the last iteration whose gradient a shard refused
        self._begun: Assignment | None = None  # the assignment that the loop was given
        self._opened = False
        self._closing = threading.Lock()
        self._closed = False
        self._training = False
        self._has_weighted = False
        self._weighted_by: str | None = None  # the function that weighted the current iteration's gradient
        self._identity = idl.common.Identity(config.job, config.worker, self.incarnation)
        clients = [
            self._client(idl.parameter_server.ParameterServer, address, "parameter server")
            for address in config.shards
        ]
        self._shards = ShardClients(clients, config.barrier_timeout, self.log_fields)
        self._membership = Membership(
            self._client(idl.batchsize_manager.BatchSizeManager, config.manager, "BatchSizeManager"),
            self._identity,
            config.barrier_timeout,
            self._shards.forfeit if clients else lambda lost: None,
            self._shards.abandon,
            self._shards.fence_from_any_thread if clients else None,
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
        return self._membership.reconnects + self._shards.reconnects

    @property
    def uses_all_reduce(self) -> bool:
        """Return whether the workers all-reduce their gradients, without a parameter server."""
        return not self.config.shards

    @property
    def sums_exactly(self) -> bool:
        """Return whether gradients are summed in fixed point, as the manager answered to `join`."""
        return self.synchronisation.exact

    @property
    def is_repeated(self) -> bool:
        """Return whether the loop has gone through the assignment's iteration, or a later one, before."""
        return self.assignment is not None and self.assignment.iteration <= self._options.reached

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

    def add_scalars(self, scalars: Scalars, every: int = 1) -> None:
        """Add a writer of this worker's iteration times, for the iterations that `every` divides.

        Raises:
            InvalidRequestError: `every` is less than 1.
        """
        self._recorder.add_writer(scalars, every)

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
        """The factor of learning rates in the present iteration, by `lr_factor`.

        Raises:
            InvalidRequestError: There is no present batch, or a script's function gave no factor.
        """
        scaling = self.scaling
        assert self._spec is not None
        return self.lr_factor(scaling, self._spec.total_batch_size)

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
            exchange=FIXED_GROUP if self.uses_all_reduce else PARAMETER_SERVER,
            device=self.config.device or as_kind(self.device or "") or cpu_kind(),
            threads=self.threads,
        )
        self._run = joined.run
        self._shards.plans_ahead = joined.lookahead > 0
        run = f"{self.config.job}/{joined.run}"
        self._shards.identify(idl.common.Identity(run, self.config.worker, self.incarnation))
        self._membership.start_heartbeat()
        self.synchronisation = joined.synchronisation
        if self.uses_all_reduce and self.synchronisation.mode != "bsp":
            raise InvalidRequestError(
                f"the job's mode is {self.synchronisation.mode}, which needs a parameter server"
            )
        self._lost = joined.lost
        try:
            self.assignment = self._membership.next()
        except RewoundError as error:
            self._recover(error)
        assert self.assignment is not None
        return self.assignment

    def planned(self, iteration: int) -> Assignment | None:
        """Return this worker's assignment of the current or a later iteration; None if not planned yet."""
        current = self.assignment
        if current is not None and current.iteration == iteration:
            return current
        return self._membership.planned(iteration)

    def check_unopened(self) -> None:
        """Check that the parameters may be opened, before an adapter changes anything.

        Raises:
            InvalidRequestError: They were opened before, or this session has no parameter server.
        """
        if self.uses_all_reduce:
            raise InvalidRequestError("this session has no parameter server: name one with `ps`")
        if self._opened:
            raise InvalidRequestError(
                "`distribute` was called before in this session: a job has one optimiser at the parameter "
                "server, so give one optimiser the parameters of all models, and distribute it once; where "
                "each model needs an optimiser of its own, leave out `ps` and train by torch.distributed"
            )

    def open_parameters(
        self, layout: Layout, initial: NDArray[Any], state: OptimizerState | None = None
    ) -> None:
        """Open the job at the parameter server, and pull the parameters to start from.

        Args:
            layout: The parameters' layout, the same for every worker.
            initial: (elements,); the job starts from the parameters of the first worker.
            state: The optimiser's state, likewise.

        Raises:
            InvalidRequestError: The parameter server refuses, other workers' models differ, or the parameters
                were opened before.
        """
        self.check_unopened()
        self.join()
        self._options = StepOptions(layout.groups)
        self.parameters = np.empty_like(initial)
        self.gradient = np.zeros_like(initial, dtype=np.int64 if self.sums_exactly else None)
        self._layout = layout
        self.norms.open(layout)
        while not self._opened and self.assignment is not None:
            now = self.assignment
            # In bsp nothing can have been trained before the job's first iteration, as it may in other modes.
            begins = self.synchronisation.mode != "bsp" or now.iteration == self._first_iteration
            try:
                self._shards.open(layout, self.synchronisation, initial, now, state, begins=begins)
                self._shards.forfeit(self._lost)
                self._pull()
                self._opened = True
            except RewoundError as error:
                self._recover(error)
        self.start_training()

    def start_training(self) -> None:
        """Join if necessary, and start the measurements; nothing happens in later calls."""
        if self._training:
            return
        self.join()
        self._training = True
        self.before_training()
        self.stopwatch.take()
        self._monitor.resume()
        self._recorder.begin()

    def begin_iteration(self) -> None:
        """Note that the loop gets the samples of `assignment`, and measure from now on; loaders call it."""
        self._begun = self.assignment
        self.stopwatch.start()
        self.before_batch()

    def optimizer_state(self) -> OptimizerState:
        """Return the optimiser's state at the parameter server, between two iterations.

        In bsp it belongs to `parameters`; in the other modes, it is the present state.

        Raises:
            InvalidRequestError: The training has not begun, this worker was released, or, in bsp, it has no
                part in its next batch and the others have gone on.
        """
        if self.assignment is None or not self._opened:
            raise InvalidRequestError("there is nothing to save: this worker is not in a running job")
        version = self.assignment.iteration if self.synchronisation.mode == "bsp" else -1
        try:
            return self._shards.state(version, self.parameters)
        except RewoundError as error:
            # The parameters that the caller may have saved already are not those of any other state.
            raise InvalidRequestError(
                f"the optimiser's state of iteration {version} is gone ({error}); save it after the next"
            ) from error

    def lower_maximum(self, samples: int) -> None:
        """Note that this worker can take `samples` at most, which the next report tells the manager.

        Raises:
            InvalidRequestError: `samples` is less than 1.
        """
        if samples < 1:
            raise InvalidRequestError("not even one sample fits into this worker's memory")
        self._maximum = min(samples, self._maximum or samples)
        self.tally.limit = min(samples, self.tally.limit)

    def lower_at_once(self, micro_batches: int) -> None:
        """Note how many micro-batches fit into memory at once, for the reports of later iterations."""
        self.most_at_once = min(micro_batches, self.most_at_once)
        log.warning(
            "at most %d micro-batches are computed at once from now on, since memory ran out",
            self.most_at_once,
            extra=self.log_fields(),
        )

    def note_weighting(self, by: str, samples: int) -> bool:
        """Note that `samples` of this worker's samples in the iteration have their weight in the gradient.

        Where the workers all-reduce their gradients, each sample must be weighted once, by 1 / X.

        Args:
            by: The function that weights them, as the user writes it; the same throughout an iteration.
            samples: The number of samples, which is a part of the batch where it is taken in pieces.

        Returns:
            Whether this is the first call in this session.

        Raises:
            InvalidRequestError: Another function has weighted samples, or the parameter server will.
        """
        if not self.uses_all_reduce:
            raise InvalidRequestError(f"{by}: the parameter server weights gradients already; leave out `ps`")
        if self._weighted_by not in (None, by):
            raise InvalidRequestError(f"the gradient is weighted twice: by {self._weighted_by}, and by {by}")
        self._weighted_by = by
        self.weighted_samples += samples
        first, self._has_weighted = not self._has_weighted, True
        return first

    def take_samples(self) -> int:
        """Return the samples that this worker has gone through since the last call."""
        samples, self._samples = self._samples, 0
        return samples

    def accumulate(self, values: NDArray[np.floating], count: int) -> None:
        """Add a micro-batch to `gradient`; the first of an assignment's micro-batches begins from zero.

        Args:
            values: (elements,): the gradient of the mean loss over the micro-batch and, in groups of
                statistics, their values after it.
            count: The micro-batch's weight, as `MicroBatch.count`; with 0, nothing is added.

        Raises:
            InvalidRequestError: A value is too large to be summed exactly, in a job that does.
        """
        now = self.assignment
        assert now is not None
        assert self._layout is not None
        if self._summed is not now:
            self.gradient.fill(0)
            self._summed, self._summed_samples = now, 0
        if self.sums_exactly:
            add_to(self.gradient, values, count, now.total, self._layout)
        elif count:
            self.gradient += values * self.gradient.dtype.type(count / now.count)
        self._summed_samples += count
        if self.norms.of_micro_batches:
            self.norms.add(now, count, squared_norm(values, self._layout) if count else 0.0)

    def put_sums(self, sums: NDArray[np.int64]) -> None:
        """Set `gradient` to exact sums over the assignment's micro-batches, which an adapter has made."""
        assert self.assignment is not None
        np.copyto(self.gradient, sums)
        self._summed, self._summed_samples = self.assignment, self.assignment.count

    def finish_iteration(self, groups: Sequence[Group] | None = None) -> Assignment | None:
        """Push `gradient`, report, and pull the new `parameters` (Alg. 3, from line 5 on).

        With a count of 0 samples there is nothing to push; without a parameter server, nothing to pull
        either. The next assignment may be another slice of the same iteration, whose worker has left: it is
        computed with the present parameters. It may also be an earlier iteration, where the job was rewound.

        Args:
            groups: The parameter groups, if their options have changed; every worker's loop is to set the
                same ones in an iteration.

        Returns:
            The next assignment; None if this worker is released.

        Raises:
            NotMemberError: This worker was removed from the job.
            InvalidRequestError: A service refuses, or the job cannot go on; the assignment was not begun; or
                a gradient that the workers all-reduced had no weight.
            ConnectionLostError, DeadlineExceededError: A service cannot be reached, or does not answer.
        """
        done = self.assignment
        if done is None or not (self._opened or self.uses_all_reduce):
            raise InvalidRequestError("finish_iteration before the training has started")
        if self._begun is not done:
            raise InvalidRequestError(
                f"a step of iteration {done.iteration}, whose samples were not loaded: take one step for "
                f"each batch, within the loop over the loader"
            )
        if self.uses_all_reduce and self._weighted_by is None:
            raise InvalidRequestError(
                f"iteration {done.iteration} was finished, but its gradient was not weighted: call "
                f"balance(model, loader) once for a model in DistributedDataParallel, or scale each loss by "
                f"weighted(loss) before its backward pass"
            )
        summed = self._summed_samples if self._summed is done else 0
        if self._opened and self.sums_exactly and summed != done.count:
            raise InvalidRequestError(
                f"the job sums gradients exactly (`evenpace manager --exact`), which needs that of each "
                f"micro-batch, but those of iteration {done.iteration} are of {summed} of {done.count} "
                f"samples: this training loop, or its framework's adapter, has one of the whole slice"
            )
        self._weighted_by, self.weighted_samples = None, 0
        self.tally.end_compute(done)
        try:
            self._exchange(done, groups)
        except RewoundError as error:
            self._recover(error)
            self._recorder.begin()
        self._monitor.resume()
        return self.assignment

    def close(self) -> None:
        """Leave the job and close the connections; a `join` in another thread ends with an error.

        Errors are only logged.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._membership.leave()
            self._recorder.close()
            self.assignment = None
            self._monitor.close()
            self._membership.close()
            self._shards.close()

    def _exchange(self, done: Assignment, groups: Sequence[Group] | None) -> None:
        """Push, report, and pull.

        Raises:
            RewoundError: The job was rewound meanwhile.
        """
        options = self._options.at(done.iteration, groups)
        if options is not None and self.lr_factor is not unscaled:
            options = scaled(options, self.lr_scale)
        if done.count and self._opened:
            self._push(done, options)
        self._samples += done.count
        self.tally.samples += done.count
        with self.tally.phase("report", done):
            self._report(done)
        now = self.assignment
        if now is not None and (now.attempt, now.iteration) == (done.attempt, done.iteration):
            self.tally.pieces += 1
            if self._opened:
                self.on_parameters()  # the first slice has moved the model's running statistics
            return
        self.tally.iterations += 1
        if not self._opened:
            return
        if now is None:
            self._settle_last_push(done)
            return
        self.stopwatch.start()
        self._pull()
        self.stopwatch.stop()

    def _settle_last_push(self, done: Assignment) -> None:
        """Tell the shards, before this worker leaves, that it has pushed to each of them."""
        if self._shards.plans_ahead:
            with contextlib.suppress(RewoundError, NotMemberError):
                self._shards.pull(done.iteration + 1, self.parameters)

    def _push(self, done: Assignment, groups: Sequence[Group] | None) -> None:
        try:
            with self.tally.phase("push", done):
                self.norms.take_all(self._shards.push(done, self.gradient, groups))
                assert self._layout is not None
                self.norms.take_gradient(done, self.gradient, self._layout)
        except (InvalidRequestError, NotMemberError, UnavailableError) as error:
            # Other workers may be in another attempt, or the shard may have lost the job: recover once. If
            # the same iteration is refused again, another attempt would not help.
            if self.synchronisation.mode != "bsp" or self._refused == done.iteration:
                raise
            self._refused = done.iteration
            raise RewoundError(
                f"a shard refused iteration {done.iteration}: {error}", done.attempt
            ) from error

    def _recover(self, error: RewoundError) -> None:
        """Recover the job into another attempt, and continue there."""
        if self.uses_all_reduce:
            raise InvalidRequestError(
                f"the manager has lost this job's last iterations ({error}), and its workers keep the "
                f"parameters themselves: restart the job from its checkpoint"
            ) from error
        self.tally.rewinds += 1
        self.assignment = recover(
            self._membership,
            self._shards,
            error,
            None if self._opened else self._first_iteration,
            self._resume_at,
            self.config.barrier_timeout,
            self.log_fields,
        )
        self.stopwatch.take()  # reset it, with what the recovery's pull has excluded
        self._note_release()

    def _resume_at(self, assignment: Assignment) -> None:
        """Take the first assignment of another attempt, and pull its parameters."""
        self.assignment = assignment
        if self._opened:
            self._pull()

    def _report(self, done: Assignment) -> None:
        usage = self._monitor.sample()
        measured = self.stopwatch.take()
        taken = self._recorder.measure_part(
            done, self.processing_time() if self.processing_time else measured
        )
        memory = max(usage.memory, self.memory_usage()) if self.memory_usage else usage.memory
        begun = time.perf_counter()
        self._membership.report(
            Report(
                done.iteration,
                batch_processing_time=math.nan,
                waiting_time=self._waited,
                cpu_usage=usage.cpu,
                memory_usage=memory,
                maximum=self._maximum,
                attempt=done.attempt,
                # Without the batch's begin it is no place in the batch.
                start=done.start if done.batch_start is not None else None,
                at_once=self.at_once if self.at_once < done.at_once else None,
                shards=self._shards.instances_digest if self._opened else None,
                norms=self.norms.take(),
            ),
            lambda: self.tally.count_processing(taken(), done.count),
        )
        self._waited, self._maximum = 0.0, None
        self.assignment = self._membership.next()
        self._recorder.add_waiting(time.perf_counter() - begun)
        first_size = None if self._spec is None else self._spec.total_batch_size
        self._recorder.finish_part(self.assignment, self._membership.noise_scale, first_size)
        self._note_release()

    def _note_release(self) -> None:
        if self.released is not None:
            log.warning("released: %s", self.released, extra=self.log_fields())

    @property
    def _first_iteration(self) -> int:
        """Return the job's first iteration: that of the checkpoint it resumes from, or 0."""
        return self._resumed.iteration if self._resumed else 0

    @property
    def _version(self) -> int:
        """Return the version of the assignment's parameters: its iteration, or -1 for the present ones."""
        assert self.assignment is not None
        return -1 if self.synchronisation.asynchronous else self.assignment.iteration

    def _pull(self) -> None:
        with self.tally.phase("pull", self.assignment):
            waited = self._shards.pull(self._version, self.parameters)
        self._waited += waited
        self._recorder.add_waiting(waited)
        self.tally.waiting += waited
        self.stopwatch.exclude(waited)
        self.on_parameters()

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
