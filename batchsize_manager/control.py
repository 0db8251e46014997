"""Changes that an operator asks for in a running job: read from the wire, checked, and made.

The job's `operations` know what a change means for the job.
"""

from typing import Any

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.job import Job
from batchsize_manager.learning.learning import Learning
from batchsize_manager.managed_job import ManagedJob
from batchsize_manager.policies import POLICIES_WITH_PREDICTOR
from batchsize_manager.sizers import Sizes, Sizing
from idl import check
from idl.errors import InvalidRequestError
from idl.translation import read_bounds

_CHANGES = ("balancing", "sizing", "total_batch_size", "bounds", "drain", "paused", "gone", "resizing")


def apply(managed: ManagedJob, request: Any, learning: Learning, now: float) -> str:
    """Make the change that a `ControlRequest` asks for.

    Args:
        learning: The maker of policies.
        now: The time in seconds, on the job's clock.

    Returns:
        A sentence that says what was done.

    Raises:
        InvalidRequestError: The change makes no sense or is impossible; nothing was changed.
    """
    given = [name for name in _CHANGES if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(
            f"control: give exactly one of {', '.join(_CHANGES)}, not {' and '.join(given) or 'none'}"
        )
    job = managed.job
    operations = job.operations
    change = given[0]
    needs_worker = change in ("bounds", "drain", "gone")
    if not needs_worker and request.worker is not None:
        raise InvalidRequestError(f"worker: belongs to bounds, drain or gone, not to {change}")
    worker = check.text("worker", request.worker) if needs_worker else ""
    if change == "balancing":
        return _rebalance(managed, request.balancing, learning, now)
    if change == "sizing":
        return _change_sizing(managed, request.sizing, now)
    if change == "total_batch_size":
        total = check.integer("total_batch_size", request.total_batch_size, 1, job.spec.dataset_size)
        return operations.change_batch_size(total, now)
    if change == "bounds":
        return operations.change_bounds(worker, read_bounds(request.bounds), now)
    if change == "drain":
        if request.drain is not True:
            raise InvalidRequestError("drain false: a worker that is drained cannot be kept; start it again")
        return operations.drain(worker, now)
    if change == "gone":
        if request.gone is not True:
            raise InvalidRequestError("gone false: a worker that is out cannot be kept; start it again")
        return operations.remove(worker, now)
    if change == "resizing":
        return _resize(job, request.resizing, now)
    if not request.paused:
        return operations.resume(now)
    return operations.keep(now) if request.keep else operations.pause(now)


def _rebalance(managed: ManagedJob, wanted: Any, learning: Learning, now: float) -> str:
    before = managed.balancing
    policy = check.text("policy", wanted.policy)
    predictor, tolerance = before.predictor, before.tolerance
    if wanted.predictor is not None:
        predictor = check.text("predictor", wanted.predictor)
    if wanted.tolerance is not None:
        tolerance = check.number("tolerance", wanted.tolerance, 0, 1)
    try:
        after = Balancing(policy, predictor, tolerance)
        if wanted.predictor is not None and not after.uses_predictor:
            raise ValueError(
                f"predictor {predictor!r}: policy {policy} has none, only "
                f"{', '.join(sorted(POLICIES_WITH_PREDICTOR))}"
            )
        if after == before:
            return f"the policy is {policy} already, with the same options"
        successor = learning.make_successor(after, managed.job.planner.policy.models())
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
    return managed.job.operations.change_policy(after, successor, _difference(before, after), now)


def _resize(job: Job, wanted: Any, now: float) -> str:
    workers = check.integer("resizing.workers", wanted.workers, 1, job.spec.dataset_size)
    drained = [check.text("resizing.drain", name) for name in wanted.drain or ()]
    return job.operations.resize(workers, drained, now)


def _change_sizing(managed: ManagedJob, wanted: Any, now: float) -> str:
    job = managed.job
    before = job.planner.sizer.sizing
    sizes = before.batch_size
    if (wanted.least is None) != (wanted.most is None):
        raise InvalidRequestError("sizing: give both of least and most, or none")
    if wanted.least is not None:
        samples = job.spec.dataset_size
        least = check.integer("sizing.least", wanted.least, 1, samples)
        sizes = Sizes(least, check.integer("sizing.most", wanted.most, least))
    promise, similarity = before.promise, before.similarity
    if wanted.promise is not None:
        promise = check.number("sizing.promise", wanted.promise, 0, 1)
    if wanted.similarity is not None:
        similarity = check.number("sizing.similarity", wanted.similarity, 0, 1)
    try:
        after = Sizing(check.text("sizing.sizer", wanted.sizer), sizes, promise, similarity)
        job.config.check_sizing(after)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
    return job.operations.change_sizing(after, now)


def _difference(before: Balancing, after: Balancing) -> str:
    """Return in words what changes from one balancing to another."""
    changes = []
    if after.policy != before.policy:
        changes.append(f"the policy from {before.policy} to {after.policy}")
    if after.predictor != before.predictor:
        changes.append(f"the predictor from {before.predictor} to {after.predictor}")
    if after.tolerance != before.tolerance:
        changes.append(f"the tolerance from {before.tolerance:g} to {after.tolerance:g}")
    return " and ".join(changes)
