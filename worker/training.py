"""What a job trains on, and how far it is: its data, its checkpoints, and the factor of its learning rates.

It follows from the present assignment. This module knows no exchange, no wire and no framework.
"""

from collections.abc import Callable

from idl.costs import Costs
from idl.errors import InvalidRequestError
from idl.plan import Assignment, JobSpec, Scaling
from worker.config import JobCheckpoint
from worker.learning_rates import Factor, unscaled


class Training:
    """A job's training, as one of its workers knows it.

    Args:
        present: Returns this worker's part of the current iteration; None before `join`, and once released.
        learned: Returns the manager's learned state, and the samples of a whole batch, None for those of the
            spec.
    """

    def __init__(
        self, present: Callable[[], Assignment | None], learned: Callable[[], tuple[bytes, int | None]]
    ) -> None:
        # The data that the job trains on, and its order; None before a loader has declared it.
        self.spec: JobSpec | None = None
        # Returns what `JobSpec.samples` is to be, once this worker joins.
        self.samples: Callable[[], tuple[tuple[float, ...], ...]] = tuple
        # The checkpoint that the job goes on from; None where it begins.
        self.resumed: JobCheckpoint | None = None
        # Returns what the manager is to be told, after an assignment, of what samples cost that come next.
        self.costs_after: Callable[[Assignment], tuple[Costs, ...]] = lambda done: ()
        self._present = present
        self._learned = learned
        self._lr_factor: Factor = unscaled

    @property
    def declared(self) -> JobSpec:
        """The data that the job trains on, and its order.

        Raises:
            InvalidRequestError: No loader has declared it yet.
        """
        if self.spec is None:
            raise InvalidRequestError("join before a loader has said what is trained on")
        return self.spec

    @property
    def micro_batch(self) -> int | None:
        """The samples of a micro-batch; None in a job without, and before a loader has declared it."""
        return None if self.spec is None else self.spec.micro_batch

    @property
    def first_iteration(self) -> int:
        """The job's first iteration: that of the checkpoint it resumes from, or 0."""
        return self.resumed.iteration if self.resumed else 0

    @property
    def scaling(self) -> Scaling:
        """The comparison of the present batch with batches of the size that the script gives.

        Raises:
            InvalidRequestError: There is no present batch.
        """
        now = self._under_way("there is no batch")
        return now.scaling or Scaling(self.declared.total_batch_size, 1.0, float(now.iteration))

    @property
    def lr_scale(self) -> float:
        """The factor of learning rates in the present iteration, by the function that `scale_lr_by` has set.

        Raises:
            InvalidRequestError: There is no present batch, or a script's function gave no factor.
        """
        return self._lr_factor(self.scaling, self.declared.total_batch_size)

    def declare(self, spec: JobSpec) -> None:
        """Set the data that the job trains on, and its order.

        Raises:
            InvalidRequestError: Another loader has set it.
        """
        if self.spec is not None:
            raise InvalidRequestError(
                "this worker has an evenpace loader already; a job has one, for its training data "
                "(use the framework's own for evaluation)"
            )
        self.spec = spec

    def resume(self, checkpoint: JobCheckpoint) -> None:
        """Resume a saved job; to be called before the session joins.

        Raises:
            InvalidRequestError: The training has begun, or the checkpoint is of another job.
        """
        if self._present() is not None:
            raise InvalidRequestError("a checkpoint must be loaded before the training begins")
        if checkpoint.spec != self.spec:
            raise InvalidRequestError(f"the checkpoint is of {checkpoint.spec}, but this is {self.spec}")
        self.resumed = checkpoint

    def checkpoint(self) -> JobCheckpoint:
        """Return the checkpoint to be saved beside the parameters, between two iterations.

        Raises:
            InvalidRequestError: The training has not begun, or this worker was released.
        """
        now, spec = self._under_way("there is nothing to save"), self.declared
        position = None if now.batch_start is None else (now.epoch, now.batch_start)
        learned, batch_size = self._learned()
        progress = None if now.scaling is None else now.scaling.progress
        return JobCheckpoint(
            now.iteration, learned, spec, position, batch_size or spec.total_batch_size, progress
        )

    def scale_lr_by(self, factor: Factor) -> None:
        """Set the function that gives the factor of learning rates; see `worker.learning_rates`."""
        self._lr_factor = factor

    def _under_way(self, lack: str) -> Assignment:
        """Return the present assignment; raise InvalidRequestError, which says what lacks, without one."""
        now = self._present()
        if now is None:
            raise InvalidRequestError(f"{lack}: this worker is not in a running job")
        return now
