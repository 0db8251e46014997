"""A worker's session: its membership with the manager, and its parameters at the parameter server, if any.

It goes through Alg. 3 of LB-BSP and knows no framework: gradients and parameters are flat arrays. A
framework's adapter fills `gradient`, calls `finish_iteration`, and takes `parameters` from there. Without a
parameter server the workers reduce their gradients among themselves, by means of their framework.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import idl
from idl.errors import InvalidRequestError, NotMemberError, RewoundError, UnavailableError
from idl.layout import Group, Layout
from idl.plan import Assignment, JobSpec, Resume
from idl.synchronisation import Synchronisation
from rpc.address import Address
from rpc.client import Client
from worker.config import JobCheckpoint, SessionConfig, default_worker_name
from worker.counters import SessionTally
from worker.membership import Finished, Membership
from worker.optimizer_state import OptimizerState
from worker.recovery import recover
from worker.resources.device import as_kind, cpu_kind
from worker.resources.monitors import ResourceMonitor
from worker.scalars import Recorder, Scalars
from worker.shards import Shards
from worker.step_options import Options
from worker.stopwatch import Stopwatch

__all__ = ["JobCheckpoint", "Session", "SessionConfig", "default_worker_name"]

log = logging.getLogger(__name__)


class Session:
    """One worker's part in one job.

    Attributes:
        config: What it was made from.
        incarnation: This session's id; no other session ever has it.
        assignment: What to do in the current iteration; None before `join`, and once released.
        synchronisation: How the job's workers wait for each other, as the manager said in `join`.
        gradient: (elements,) to be filled with the batch's mean gradient before `finish_iteration`.
        parameters: (elements,) as the parameter server gave them last.
        before_training: Called once, when everything is ready for the first iteration.
        on_parameters: Called whenever `parameters` has new values.
        before_batch: Called before the loop is given its part of a batch.
        processing_time: If set, gives the batch processing time of an iteration in seconds in place of the
            stopwatch; it is asked once for each, maybe later and by another thread.
        weighted_samples: Of the current iteration; see `note_weighting`.
        memory_usage: If set, gives the occupied share of the accelerator's memory, 0 to 1, at the end of an
            iteration; it is reported where it is above that of the machine's.
        device: Of which kind this worker's GPU is, once an adapter has said so; `join` tells the manager.
        tally: Counts of what this session has done.
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
        self.memory_usage: Callable[[], float] | None = None
        self.device: str | None = None
        self.tally = SessionTally(config.bounds.maximum)
        self._monitor = ResourceMonitor()
        self._recorder = Recorder(self.log_fields)
        self._spec: JobSpec | None = None
        self._resumed: JobCheckpoint | None = None
        self._run = ""
        self._lost: Sequence[Any] = ()  # what the manager said was lost before this worker came
        self._waited = 0.0  # seconds in the parameter server since the last report
        self._samples = 0  # finished since `take_samples`
        self._maximum: int | None = None  # samples, where it was learned since the last report
        self._options = Options()
        self._refused = -1  # the last iteration of which a shard did not take the gradient
        self._opened = False
        self._closing = threading.Lock()
        self._closed = False
        self._training = False
        self._has_weighted = False
        self._weighted_by: str | None = None  # what gave the current iteration's gradient its weight
        self._identity = idl.common.Identity(config.job, config.worker, self.incarnation)
        clients = [
            self._client(idl.parameter_server.ParameterServer, address, "parameter server")
            for address in config.shards
        ]
        self._shards = Shards(clients, config.barrier_timeout, self.log_fields)
        self._membership = Membership(
            self._client(idl.batchsize_manager.BatchSizeManager, config.manager, "BatchSizeManager"),
            self._identity,
            config.barrier_timeout,
            self._shards.forfeit if clients else lambda lost: None,
            self._shards.abandon,
            self._shards.fence_aside if clients else None,
            self.log_fields,
        )

    @property
    def spec(self) -> JobSpec | None:
        """What is trained on, once a loader has said so."""
        return self._spec

    @property
    def run(self) -> str:
        """The job's run, which has another name for each start of the job; empty before `join`."""
        return self._run

    @property
    def reconnects(self) -> int:
        """How often a connection to a service had to be made anew; from any thread."""
        return self._membership.reconnects + self._shards.reconnects

    @property
    def reduces_itself(self) -> bool:
        """Whether the workers reduce their gradients among themselves, with no parameter server."""
        return not self.config.shards

    @property
    def repeats(self) -> bool:
        """Whether the loop has gone through the assignment's iteration, or a later one, already."""
        return self.assignment is not None and self.assignment.iteration <= self._options.reached

    @property
    def released(self) -> str | None:
        """Why the manager has taken this worker out of the job, which is faster without it; or None.

        Where it plans ahead, it may say so while there are assignments to work through.
        """
        return self._membership.released if self.assignment is None else None

    def log_fields(self) -> dict[str, object]:
        """What lines of log about this worker say beside their message; from any thread."""
        fields: dict[str, object] = {"job": self.config.job, "worker": self.config.worker}
        if self._run:
            fields |= {"run": self._run, "attempt": self._membership.attempt}
        assignment = self.assignment
        return fields if assignment is None else fields | {"iteration": assignment.iteration}

    def tell_scalars(self, scalars: Scalars, every: int = 1) -> None:
        """Tell somebody from now on what this worker's iterations took, of those that `every` divides.

        Raises:
            InvalidRequestError: `every` is less than 1.
        """
        self._recorder.tell(scalars, every)

    def declare(self, spec: JobSpec) -> None:
        """Say what is trained on.

        Raises:
            InvalidRequestError: A loader has said so before.
        """
        if self._spec is not None:
            raise InvalidRequestError(
                "this worker has an evenpace loader already; a job has one, for its training data "
                "(use the framework's own for evaluation)"
            )
        self._spec = spec

    def resume(self, checkpoint: JobCheckpoint) -> None:
        """Go on with a job that was saved; before `join`.

        Raises:
            InvalidRequestError: It is too late, or the job was another.
        """
        if self.assignment is not None:
            raise InvalidRequestError("a checkpoint must be loaded before the training begins")
        if checkpoint.spec != self._spec:
            raise InvalidRequestError(f"the checkpoint is of {checkpoint.spec}, but this is {self._spec}")
        self._resumed = checkpoint

    def checkpoint(self) -> JobCheckpoint:
        """What to save beside the parameters, between two iterations.

        Raises:
            InvalidRequestError: The training has not begun, or this worker was released.
        """
        if self.assignment is None or self._spec is None:
            raise InvalidRequestError("there is nothing to save: this worker is not in a running job")
        now = self.assignment
        position = None if now.batch_start is None else (now.epoch, now.batch_start)
        learned, batch_size = self._membership.checkpoint()
        batch_size = batch_size or self._spec.total_batch_size
        return JobCheckpoint(now.iteration, learned, self._spec, position, batch_size)

    def join(self) -> Assignment:
        """Become a member and wait for the first assignment, which comes when all workers are there.

        Raises:
            InvalidRequestError: The manager refuses, and says why; or this worker was released.
            ConnectionLostError: It cannot be reached.
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
            Resume(saved.iteration, saved.position, saved.batch_size) if saved else None,
            saved.learned if saved else b"",
            unreleasable=self.reduces_itself,
            device=self.config.device or as_kind(self.device or "") or cpu_kind(),
        )
        self._run = joined.run
        self._shards.plans_ahead = joined.lookahead > 0
        run = f"{self.config.job}/{joined.run}"
        self._shards.identify(idl.common.Identity(run, self.config.worker, self.incarnation))
        self._membership.start_heartbeat()
        self.synchronisation = joined.synchronisation
        if self.reduces_itself and self.synchronisation.mode != "bsp":
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
        """This worker's assignment of the current or a later iteration, if there is one yet."""
        current = self.assignment
        if current is not None and current.iteration == iteration:
            return current
        return self._membership.planned(iteration)

    def open_parameters(
        self, layout: Layout, initial: NDArray[Any], state: OptimizerState | None = None
    ) -> None:
        """Open the job at the parameter server, and get the parameters to start from.

        Args:
            layout: The same for every worker.
            initial: (elements,); the job starts from those of the worker that comes first.
            state: The optimiser's, likewise.

        Raises:
            InvalidRequestError: The parameter server refuses, or other workers' models differ.
        """
        if self.reduces_itself:
            raise InvalidRequestError("this session has no parameter server: name one with `ps`")
        self.join()
        self._options = Options(layout.groups)
        self.parameters = np.empty_like(initial)
        self.gradient = np.zeros_like(initial)
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
        """Everything is ready for the first iteration; nothing happens if that was so before."""
        if self._training:
            return
        self.join()
        self._training = True
        self.before_training()
        self.stopwatch.take()
        self._monitor.resume()
        self._recorder.begin()

    def optimizer_state(self) -> OptimizerState:
        """The optimiser's state at the parameter server, between two iterations.

        In bsp it is that of `parameters`; in the other modes, what there is now.

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
        """Note that this worker has proved to take so many samples at most; the next report says so.

        Raises:
            InvalidRequestError: It is less than one sample.
        """
        if samples < 1:
            raise InvalidRequestError("not even one sample fits into this worker's memory")
        self._maximum = min(samples, self._maximum or samples)
        self.tally.limit = min(samples, self.tally.limit)

    def note_weighting(self, by: str, samples: int) -> bool:
        """Note that so many of this worker's samples in the iteration have their weight in the gradient.

        Where the workers reduce their gradients among themselves, each sample must have it, 1 / X, once.

        Args:
            by: What gives it, in the user's words; the same throughout an iteration.
            samples: Some, where a batch is taken in pieces.

        Returns:
            Whether this is the first that is noted in this session.

        Raises:
            InvalidRequestError: Something else has given a weight, or the parameter server will.
        """
        if not self.reduces_itself:
            raise InvalidRequestError(f"{by}: the parameter server weights gradients already; leave out `ps`")
        if self._weighted_by not in (None, by):
            raise InvalidRequestError(f"the gradient is weighted twice: by {self._weighted_by}, and by {by}")
        self._weighted_by = by
        self.weighted_samples += samples
        first, self._has_weighted = not self._has_weighted, True
        return first

    def take_samples(self) -> int:
        """How many samples this worker has gone through since the last call."""
        samples, self._samples = self._samples, 0
        return samples

    def finish_iteration(self, groups: Sequence[Group] | None = None) -> Assignment | None:
        """Push `gradient`, report, and pull the new `parameters` (Alg. 3, from line 5 on).

        With a count of 0 samples there is nothing to push; without a parameter server, nothing to pull
        either. What comes next may be another slice of the same iteration, whose worker has gone: with the
        parameters that are here. It may also be an earlier iteration, where the job had to be rewound.

        Args:
            groups: The parameter groups, if their options have changed; every worker's loop is to set the
                same ones in an iteration.

        Returns:
            What to do next; None if this worker is released.

        Raises:
            NotMemberError: This worker was taken out of the job.
            InvalidRequestError: A service refuses, or the job cannot go on; or a gradient that the workers
                reduced themselves had no weight.
            ConnectionLostError, DeadlineExceededError: A service is away.
        """
        done = self.assignment
        if done is None or not (self._opened or self.reduces_itself):
            raise InvalidRequestError("finish_iteration before the training has started")
        if self.reduces_itself and self._weighted_by is None:
            raise InvalidRequestError(
                f"iteration {done.iteration} was finished, but its gradient was not weighted: call "
                f"balance(model, loader) once for a model in DistributedDataParallel, or scale each loss by "
                f"weighted(loss) before its backward pass"
            )
        self._weighted_by, self.weighted_samples = None, 0
        self.tally.computed(done)
        try:
            self._exchange(done, groups)
        except RewoundError as error:
            self._recover(error)
            self._recorder.begin()
        self._monitor.resume()
        return self.assignment

    def close(self) -> None:
        """Leave the job and close the connections; a `join` in another thread ends with an error.

        What fails now is only logged.
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
        """Push, report, and pull; any of them may find that the job was rewound."""
        options = self._options.of(done.iteration, groups)
        if done.count and self._opened:
            self._push(done, options)
        self._samples += done.count
        self.tally.samples += done.count
        with self.tally.phase("report", done):
            self._report(done)
        now = self.assignment
        if now is not None and (now.attempt, now.iteration) == (done.attempt, done.iteration):
            self.tally.pieces += 1
            return
        self.tally.iterations += 1
        if not self._opened:
            return
        if now is None:
            self._take_leave(done)
            return
        self.stopwatch.start()
        self._pull()
        self.stopwatch.stop()

    def _take_leave(self, done: Assignment) -> None:
        """Tell the shards, before this worker goes, that each of them has what it has pushed."""
        if self._shards.plans_ahead:
            with contextlib.suppress(RewoundError, NotMemberError):
                self._shards.pull(done.iteration + 1, self.parameters)

    def _push(self, done: Assignment, groups: Sequence[Group] | None) -> None:
        try:
            with self.tally.phase("push", done):
                self._shards.push(done, self.gradient, groups)
        except (InvalidRequestError, NotMemberError, UnavailableError) as error:
            # Others may have gone on in another attempt, or the shard has forgotten the job. If that is not
            # it, another attempt will not help, nor be made.
            if self.synchronisation.mode != "bsp" or self._refused == done.iteration:
                raise
            self._refused = done.iteration
            raise RewoundError(
                f"a shard refused iteration {done.iteration}: {error}", done.attempt
            ) from error

    def _recover(self, error: RewoundError) -> None:
        """Have the job brought into another attempt, and go on there."""
        if self.reduces_itself:
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
            self._go_on,
            self.config.barrier_timeout,
            self.log_fields,
        )
        self.stopwatch.take()  # anew from 0: what the recovery waited for is not to be taken off either
        self._note_release()

    def _go_on(self, assignment: Assignment) -> None:
        """The first assignment of another attempt."""
        self.assignment = assignment
        if self._opened:
            self._pull()

    def _report(self, done: Assignment) -> None:
        usage = self._monitor.sample()
        measured = self.stopwatch.take()
        taken = self._recorder.measured(done, self.processing_time() if self.processing_time else measured)
        memory = max(usage.memory, self.memory_usage()) if self.memory_usage else usage.memory
        begun = time.perf_counter()
        self._membership.report(
            Finished(
                done.iteration,
                lambda: self.tally.processed(taken(), done.count),
                self._waited,
                usage.cpu,
                memory,
                self._maximum,
                done.attempt,
                done.start if done.batch_start is not None else None,  # else it is no place in the batch
            )
        )
        self._waited, self._maximum = 0.0, None
        self.assignment = self._membership.next()
        self._recorder.waited(time.perf_counter() - begun)
        self._recorder.finished(self.assignment)
        self._note_release()

    def _note_release(self) -> None:
        if self.released is not None:
            log.warning("released: %s", self.released, extra=self.log_fields())

    @property
    def _first_iteration(self) -> int:
        """Of the job, as far as this worker was told."""
        return self._resumed.iteration if self._resumed else 0

    @property
    def _version(self) -> int:
        """Of the parameters for the assignment: those of its iteration, or whatever there is now."""
        assert self.assignment is not None
        return -1 if self.synchronisation.asynchronous else self.assignment.iteration

    def _pull(self) -> None:
        with self.tally.phase("pull", self.assignment):
            waited = self._shards.pull(self._version, self.parameters)
        self._waited += waited
        self._recorder.waited(waited)
        self.tally.waiting += waited
        self.stopwatch.exclude(waited)
        self.on_parameters()

    def _client(self, definition: type, address: Address, name: str) -> Client:
        return Client(
            definition,
            address,
            name,
            connect_timeout=self.config.connect_timeout,
            call_timeout=self.config.barrier_timeout,
            credentials=self.config.credentials,
            silence=self.config.silence,
            log_fields=self.log_fields,
        )
