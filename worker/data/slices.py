"""The slices of an epoch's batches that are this worker's; what every framework's loader builds on.

It knows the session and the plan, and no framework: indices come out, samples are the loader's business.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.plan import Assignment, JobSpec, permutation
from worker.session import JobCheckpoint, Session

_FORMAT = 1  # of what `state_dict` gives


@dataclass(frozen=True)
class Slice:
    """This worker's part of one batch.

    Attributes:
        assignment: What the manager planned.
        indices: Of the samples in the data set, (count,). With a count of 0 there are as many as this worker
            takes at least, whose gradient has no weight: every loop goes through every iteration, so that
            schedules agree, and all take part where workers reduce their gradients among themselves.
    """

    assignment: Assignment
    indices: NDArray[np.int64]


class Slices:
    """Goes through the epochs of a job, one pass for each, as `Session` is told slice by slice.

    Args:
        dataset_size: Samples.
        batch_size: Samples of a whole batch, over all workers.
        session: With the services.
        shuffle: Whether each epoch has an order of its own.
        seed: Of that order.
        drop_last: Whether an epoch's last, smaller batch is left out.

    Attributes:
        session: As given.
        spec: What is trained on.
        order: The current epoch's permutation, (dataset_size,).

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    def __init__(
        self,
        dataset_size: int,
        batch_size: int,
        session: Session,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        try:
            self.spec = JobSpec(dataset_size, batch_size, seed, shuffle, drop_last)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        session.declare(self.spec)
        self.session = session
        self.order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._ordered = -1  # the epoch that `order` is of
        self._epochs_begun = 0
        self._first: dict[int, int] = {}  # iteration of each epoch, as far as this worker has been there

    def __len__(self) -> int:
        """How many batches the current epoch has, for all that is known now; before the first, any epoch.

        Where the batch size changes within an epoch, it has as many as it had, and what is left makes more of
        the new size. Those before a worker has come are taken to have had the size that it has found.
        """
        now = self.session.assignment
        if now is None or now.batch_start is None:
            return self.spec.iterations_per_epoch
        samples = self.spec.dataset_size
        left = samples - now.batch_start - now.total
        size = now.total if left else self.spec.total_batch_size  # an epoch's last batch may be smaller
        before = -(-now.batch_start // size)
        if now.batch_start and now.epoch in self._first:
            before = now.iteration - self._first[now.epoch]
        return before + 1 + (left // size if self.spec.drop_last else -(-left // size))

    def __iter__(self) -> Iterator[Slice]:
        """This worker's parts of the next epoch's batches.

        None come in an epoch that was over before this worker joined, or once it was released. Where it has
        no part in a batch (the last of an epoch may be too small), there is a sample without weight. Of a
        batch whose other workers have gone, there may be several parts; and where the job had to be rewound,
        batches come again, even those of earlier epochs.

        Raises:
            InvalidRequestError: An iteration was not finished, or its gradient not weighted.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        session = self.session
        epoch = self._epochs_begun
        self._epochs_begun += 1
        assignment = session.assignment
        if assignment is None and session.released is None:
            assignment = session.join()
        if assignment is not None and assignment.epoch < epoch:
            raise InvalidRequestError(
                f"epoch {epoch} begins, but iteration {assignment.iteration} of epoch {assignment.epoch} "
                f"is not finished: go through all batches, and call optimizer.step() for each"
            )
        if assignment is None or assignment.epoch > epoch:
            return
        if session.reduces_itself:
            session.start_training()
        while assignment is not None and assignment.epoch <= epoch:
            self._lay_out(assignment.epoch)
            if assignment.batch_start == 0:
                self._first[assignment.epoch] = assignment.iteration
            session.stopwatch.start()
            session.before_batch()
            yield Slice(assignment, self._indices(assignment))
            if session.reduces_itself:
                session.finish_iteration()
            finished, assignment = assignment, session.assignment
            if assignment is finished:  # an equal one may come again, once others were to do it and did not
                raise InvalidRequestError(
                    f"iteration {finished.iteration} was not finished: call optimizer.step() for each batch"
                )

    def skip_epochs(self) -> int:
        """Pass over the epochs that were over before this worker came, and say how many they are."""
        if self.session.released is not None:
            return 0
        skipped = max(0, self.session.join().epoch - self._epochs_begun)
        self._epochs_begun += skipped
        return skipped

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands and what its manager has learned, to be saved beside the parameters.

        To be called between two iterations. It has numbers, strings and bytes only.
        """
        saved = self.session.checkpoint()
        return {
            "format": _FORMAT,
            "iteration": saved.iteration,
            "learned": saved.learned,
            "spec": asdict(saved.spec),
            "position": saved.position,
            "batch_size": saved.batch_size,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was called; to be called before the training begins.

        Epochs that were over by then are passed over.

        Raises:
            InvalidRequestError: It is not of this job, or too late.
        """
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise InvalidRequestError(
                f"the loader's state is not what state_dict() of format {_FORMAT} gives"
            )
        position = state.get("position")  # earlier versions did not save it, nor the batch size
        self.session.resume(
            JobCheckpoint(
                state["iteration"],
                state["learned"],
                JobSpec(**state["spec"]),
                tuple(position) if position is not None else None,
                state.get("batch_size"),
            )
        )

    def _lay_out(self, epoch: int) -> None:
        """Have the epoch's order at hand."""
        if epoch != self._ordered:
            self.order, self._ordered = permutation(self.spec, epoch), epoch

    def _indices(self, assignment: Assignment) -> NDArray[np.int64]:
        start, count = assignment.start, assignment.count
        if not count:
            count = min(self.session.config.bounds.minimum, len(self.order))
            start = min(start, len(self.order) - count)
        return self.order[start : start + count]
