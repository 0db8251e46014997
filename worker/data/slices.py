"""This worker's slices of an epoch's batches, on which every framework's loader builds.

This module knows the session and the plan, and no framework: it yields indices, and loaders load the samples.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from idl.costs import Costs, digest, scaled_costs
from idl.errors import InvalidRequestError, ReleasedError
from idl.plan import Assignment, JobSpec, permutation
from worker.data.micro_batches import MicroBatch, micro_batches_of
from worker.session import JobCheckpoint, Session

_FORMAT = 1  # of the dictionary that `state_dict` returns
# Of the spec: a script may change what is still to come, and samples are compared between workers alone.
_NOT_SAVED = ("milestones", "samples")
_TOLD_BATCHES = 6  # whose costs the manager is told ahead
_MOST_RUNS = 3  # of costs in a report: a batch may be of a whole epoch


@dataclass(frozen=True)
class Slice:
    """This worker's part of one batch.

    Attributes:
        indices: Indices of the samples in the data set, (count,). With a count of 0 there are as many as this
            worker takes at least, and their gradient has no weight: every loop goes through every iteration,
            so that learning-rate schedules agree, and all workers take part in an all-reduce.
    """

    assignment: Assignment  # this worker's assignment in the manager's plan
    indices: NDArray[np.int64]
    micro_batches: Sequence[MicroBatch] = ()  # the slice in micro-batches; empty in a job without

    @property
    def epoch(self) -> int:
        """The number of its epoch."""
        return self.assignment.epoch


class Slices:
    """An iterable over this worker's slices of a job's batches, one pass for each epoch.

    Args:
        dataset_size: Samples of the data set.
        batch_size: Samples of a whole batch, over all workers; or these by the first epoch that has them.
        shuffle: Whether each epoch has a permutation of its own.
        drop_last: Whether an epoch's last, smaller batch is left out.
        micro_batch: Samples of a micro-batch; None for a job without.
        weight_limit: As in `JobSpec`.
        cost: What each sample costs to compute, as `idl.costs.scaled_costs` takes it; None where all cost the
            same.
        sort: Whether each batch is sorted by cost, and its parts are padded.
        advice: What a loop has to do for each batch, in the framework's words; for errors.

    Attributes:
        spec: The data that the job trains on, and its order.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    def __init__(
        self,
        dataset_size: int,
        batch_size: int | Mapping[int, int],
        session: Session,
        *,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        micro_batch: int | None = None,
        weight_limit: int | None = None,
        cost: ArrayLike | Callable[[int], float] | None = None,
        sort: bool = False,
        advice: str = "call optimizer.step() for each batch",
    ) -> None:
        try:
            costs = None if cost is None else scaled_costs(cost, dataset_size)
            if sort and costs is None:
                raise InvalidRequestError(
                    "sort=True: give the cost of each sample, which batches are sorted by"
                )
            self.spec = JobSpec.of(
                dataset_size,
                batch_size,
                seed,
                shuffle,
                drop_last,
                micro_batch,
                weight_limit,
                total_cost=None if costs is None else int(costs.sum(dtype=np.int64)),
                sorted_by=digest(costs) if sort and costs is not None else None,
            )
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        session.training.declare(self.spec)
        if costs is not None:
            session.training.costs_after = _CostsToTell(self.spec, costs)
        self._costs = costs if sort else None  # by which each batch is sorted, (dataset_size,)
        self.session = session  # the session with the services
        self._advice = advice
        # The current epoch's permutation, (dataset_size,).
        self.order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self._order_epoch = -1  # the epoch that `order` is of
        self._epochs_begun = 0
        self._first_iteration: dict[int, int] = {}  # by epoch, if this worker has seen its beginning

    def __len__(self) -> int:
        """Return the number of batches of the current epoch, as far as is known; before it, of any epoch.

        Where the batch size changes within an epoch, its remaining samples make batches of the new size. The
        batches before this worker joined are assumed to have had the size at that time.
        """
        now = self.session.assignment
        if now is None or now.batch_start is None:
            return self.spec.iterations_per_epoch
        samples = self.spec.dataset_size
        left = samples - now.batch_start - now.total
        size = now.total if left else self.spec.total_batch_size  # an epoch's last batch may be smaller
        before = -(-now.batch_start // size)
        if now.batch_start and now.epoch in self._first_iteration:
            before = now.iteration - self._first_iteration[now.epoch]
        return before + 1 + (left // size if self.spec.drop_last else -(-left // size))

    def __iter__(self) -> Iterator[Slice]:
        """Yield this worker's slices of the next epoch's batches.

        There are none in an epoch that was over before this worker joined, or once it was released. Where it
        has no part in a batch (the last of an epoch may be too small), there is a sample without weight. Of a
        batch of which other workers have left, there may be several slices; and where the job was rewound,
        batches are repeated, even those of earlier epochs.

        Raises:
            InvalidRequestError: An iteration was not finished, or its gradient not weighted.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        session = self.session
        epoch = self._epochs_begun
        self._epochs_begun += 1
        assignment = session.assignment
        if assignment is None and session.released is None:
            with contextlib.suppress(ReleasedError):
                assignment = session.join()
        if assignment is not None and assignment.epoch < epoch:
            raise InvalidRequestError(
                f"epoch {epoch} begins, but iteration {assignment.iteration} of epoch {assignment.epoch} "
                f"is not finished: go through all batches, and {self._advice}"
            )
        if assignment is None or assignment.epoch > epoch:
            return
        with contextlib.suppress(ReleasedError):
            session.start_training()
        assignment = session.assignment
        while assignment is not None and assignment.epoch <= epoch:
            self._permute(assignment.epoch)
            if assignment.batch_start == 0:
                self._first_iteration[assignment.epoch] = assignment.iteration
            session.begin_iteration()
            if session.assignment is not assignment:
                assignment = session.assignment
                continue
            yield self.slice_of(assignment)
            if session.exchange.loader_finishes:
                session.finish_iteration()
            finished, assignment = assignment, session.assignment
            if assignment is finished:  # an equal one is possible: a slice may be assigned to a worker again
                raise InvalidRequestError(
                    f"iteration {finished.iteration} was not finished: {self._advice}; do so before the next "
                    "batch is taken, unlike who reads one batch ahead (a prefetcher, the loops of Accelerate "
                    "and Lightning)"
                )

    @property
    def progress(self) -> float:
        """The training's progress before the present batch, in iterations of the script's first batch size.

        It is their number until the batch's size changes; then each iteration counts as much as its samples
        are worth by the gradient noise (`idl.plan.Scaling`). A schedule may go by it.

        Raises:
            InvalidRequestError: There is no present batch.
        """
        return self.session.training.scaling.progress

    def skip_epochs(self) -> int:
        """Skip the epochs that were over before this worker joined, and return their number."""
        if self.session.released is not None:
            return 0
        skipped = 0
        with contextlib.suppress(ReleasedError):
            skipped = max(0, self.session.join().epoch - self._epochs_begun)
        self._epochs_begun += skipped
        return skipped

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained, of `number`, each for one pass over the loader.

        They begin with the job's present one: a worker that joins late, or resumes from a checkpoint, has
        none of those that are over. They end early once this worker is released.

        Raises:
            InvalidRequestError: `number` is negative, or no pass was made in an epoch.
            EvenpaceError: As `Session.join` raises.
        """
        if number < 0:
            raise InvalidRequestError(f"epochs({number}): must be at least 0")
        while True:
            self.skip_epochs()
            epoch = self._epochs_begun
            if epoch >= number or self.session.released is not None:
                return
            yield epoch
            if self._epochs_begun == epoch:
                raise InvalidRequestError(
                    f"epoch {epoch} is over, but the loader was not gone through: in a loop over "
                    f"loader.epochs({number}), go through the loader once for each epoch"
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position and its manager's learned state, to be saved beside the parameters.

        To be called between two iterations. The dictionary has numbers, strings and bytes only.
        """
        saved = self.session.training.checkpoint()
        return {
            "format": _FORMAT,
            "iteration": saved.iteration,
            "learned": saved.learned,
            # A field without a value is left out: NumPy's files, for one, have no None.
            "spec": {
                name: value
                for name, value in asdict(saved.spec).items()
                if value is not None and name not in _NOT_SAVED
            },
            "position": saved.position,
            "batch_size": saved.batch_size,
        } | ({} if saved.progress is None else {"progress": saved.progress})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from the position at which `state_dict` was called; to be called before the training begins.

        Epochs that were over by then are skipped.

        Raises:
            InvalidRequestError: The state is not of this job, or the training has begun.
        """
        if not isinstance(state, dict) or state.get("format") != _FORMAT:
            raise InvalidRequestError(
                f"the loader's state is not what state_dict() of format {_FORMAT} gives"
            )
        position = state.get("position")  # earlier versions did not save it, nor the batch size
        self.session.training.resume(
            JobCheckpoint(
                state["iteration"],
                state["learned"],
                JobSpec(**state["spec"], milestones=self.spec.milestones),
                tuple(position) if position is not None else None,
                state.get("batch_size"),
                state.get("progress"),
            )
        )

    def _permute(self, epoch: int) -> None:
        """Compute the epoch's permutation, unless it is the present one."""
        if epoch != self._order_epoch:
            self.order, self._order_epoch = permutation(self.spec, epoch), epoch

    def slice_of(self, assignment: Assignment) -> Slice:
        """Return the samples of an assignment of the current epoch."""
        batch = self._sorted(assignment) if self._costs is not None and assignment.count else None
        if self.spec.micro_batch is not None:
            parts = micro_batches_of(self.spec, self.order, assignment, batch)
            return Slice(assignment, np.concatenate([part.indices for part in parts]), parts)
        start, count = assignment.start, assignment.count
        if batch is not None:
            first = start - assignment.batch_begin
            return Slice(assignment, batch[first : first + count])
        if not count:
            count = min(self.session.config.bounds.minimum, len(self.order))
            start = min(start, len(self.order) - count)
        return Slice(assignment, self.order[start : start + count])

    def _sorted(self, assignment: Assignment) -> NDArray[np.int64]:
        """Return the samples of an assignment's batch by ascending cost, (total,)."""
        assert self._costs is not None
        begin = assignment.batch_begin
        batch = self.order[begin : begin + assignment.total]
        return batch[np.argsort(self._costs[batch], kind="stable")]


class _CostsToTell:
    """The costs that the manager is told with reports: of the next batches, each once in an attempt.

    Only the worker that has a batch's first samples tells them.

    Args:
        spec: The data that the job trains on, and its order.
        costs: Those of all samples, (dataset_size,).
    """

    def __init__(self, spec: JobSpec, costs: NDArray[np.uint32]) -> None:
        self._spec = spec
        self._costs = costs
        self._orders: dict[int, NDArray[np.int64]] = {}  # by epoch, its permutation
        self._told = (-1, 0, 0)  # attempt, epoch, and the position there up to which they were told

    def __call__(self, done: Assignment) -> tuple[Costs, ...]:
        """Return the costs that are to be told with the report of an assignment."""
        if done.batch_start is None or done.start != done.batch_start:
            return ()
        attempt, epoch, position = self._told
        end = done.batch_start + done.total
        if attempt != done.attempt or (epoch, position) < (done.epoch, end):
            epoch, position = done.epoch, end
        samples = self._spec.dataset_size
        wanted = (done.epoch - epoch) * samples + end + _TOLD_BATCHES * done.total - position
        runs: list[Costs] = []
        while wanted > 0 and len(runs) < _MOST_RUNS:
            if position == samples:
                epoch, position = epoch + 1, 0
            stop = min(samples, position + wanted)
            values = self._costs[self._order(epoch)[position:stop]]
            runs.append(Costs(epoch, position, values.astype("<u4").tobytes()))
            wanted, position = wanted - (stop - position), stop
        self._told = done.attempt, epoch, position
        return tuple(runs)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if epoch not in self._orders:
            self._orders = {old: order for old, order in self._orders.items() if old == epoch - 1}
            self._orders[epoch] = permutation(self._spec, epoch)
        return self._orders[epoch]
