"""What must hold of a run, whatever befell it. Pure: histories in, violations in words out."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenpace.lab.chaos.ledgers import Journal, ShardSteps
from idl.plan import JobSpec, permutation

TOLERANCE = 1e-9  # relative, of parameters
_UNTOLD = 100  # steps
_order = lru_cache(maxsize=64)(permutation)


def exactly_once(course: ShardSteps, spec: JobSpec) -> Iterator[str]:
    """Each step's slices make up its batch, and each epoch's batches make up the data, each sample once."""
    counts = np.zeros(spec.dataset_size, dtype=np.int64)
    for iteration, step in enumerate(course.steps):
        epoch, start, total = spec.batch(iteration)
        position = start
        for first, count, worker in sorted(step.slices):
            if first != position or count < 1:
                yield f"{course.name}: iteration {iteration}: {worker} at {first}, where {position} was due"
            position = first + count
            counts[_order(spec, epoch)[first:position]] += 1
        if position != start + total:
            yield f"{course.name}: iteration {iteration} ends at {position}, not at {start + total}"
        if start + total == spec.dataset_size:
            if wrong := np.flatnonzero(counts != 1).size:
                yield f"{course.name}: epoch {epoch}: {wrong} samples not used exactly once"
            counts[:] = 0


def all_there(courses: Sequence[ShardSteps], iterations: int) -> Iterator[str]:
    """Every shard has got as far as the job, in the same attempts."""
    for course in courses:
        yield from course.violations
        if len(course.steps) != iterations:
            yield f"{course.name}: {len(course.steps)} steps at the end, not {iterations}"
    first = courses[0]
    for other in courses[1:]:
        for mine, theirs in zip(first.steps, other.steps, strict=False):
            if mine.attempt != theirs.attempt:
                yield (
                    f"iteration {mine.iteration}: {first.name} has the step of attempt {mine.attempt}, "
                    f"{other.name} that of attempt {theirs.attempt}"
                )


def journals_agree(
    journals: Iterable[Journal], courses: Sequence[ShardSteps], spec: JobSpec
) -> Iterator[str]:
    """What the ledgers say was computed by whom; what workers had is what shards had."""
    by_name = {journal.worker: journal for journal in journals}
    for journal in by_name.values():
        yield from _right_samples(journal, spec)
        yield from _known_versions(journal, courses)
    for course in courses:
        for step in course.steps:
            for start, count, worker in step.slices:
                journal = by_name.get(worker, Journal(worker))
                computed = journal.computed.get((step.attempt, step.iteration), [])
                if not _covers(computed, start, start + count):
                    yield (
                        f"{course.name}: iteration {step.iteration} has {start} to {start + count} from "
                        f"{worker}, which computed {[part[:2] for part in computed]}"
                    )


def history_agrees(records: Sequence[Mapping[str, Any]], course: ShardSteps, spec: JobSpec) -> Iterator[str]:
    """The manager's records are of whole batches, each iteration once at most, in order.

    Some may be missing that it had not written when it died, but only before a new attempt: within one, it
    plans an iteration when the one before is complete. A shard knows each iteration's attempt.
    """
    iterations = len(course.steps)
    if iterations and not records:
        yield f"manager: no record of any of {iterations} iterations"
    last, attempt = -1, 0  # of the record before
    for record in records:
        iteration, parts = record["iteration"], record["workers"].values()
        _, _, total = spec.batch(iteration)
        counted = sum(part["batch_size"] for part in parts)
        if not counted == record["total"] == total:
            yield f"manager: iteration {iteration} has {counted} samples of {record['total']}, not {total}"
        if not last < iteration < iterations:
            yield f"manager: iteration {iteration} of {iterations} after iteration {last}"
            continue
        if iteration > last + 1 and course.steps[iteration].attempt == attempt:
            yield f"manager: no record from {last + 1} to {iteration - 1}, all in attempt {attempt}"
        last, attempt = iteration, course.steps[iteration].attempt


def parameters_equal(
    what: str, values: NDArray[np.float64], expected: NDArray[np.float64], scale: float
) -> Iterator[str]:
    """Parameters, or what was made of them, are those of one process."""
    error = relative_error(values, expected, scale)
    if not error <= TOLERANCE:
        yield f"{what}: differs by {error:.2g} from one process on the whole batches"


def bits_equal(
    finals: Mapping[str, tuple[int, NDArray[np.float64]]], calm: Mapping[str, tuple[int, NDArray[np.float64]]]
) -> Iterator[str]:
    """Versions and parameters that workers ended with are, to the last bit, those of a run without faults."""
    if not calm:
        yield "there are no final parameters of a run without faults"
    for worker, (version, parameters) in finals.items():
        for other, (calm_version, expected) in calm.items():
            if version != calm_version:
                yield f"{worker}: ended with version {version}; without faults, {other} with {calm_version}"
            elif differ := int((parameters.view(np.uint64) != expected.view(np.uint64)).sum()):
                yield f"{worker}: {differ} final parameters have other bits than {other}'s without faults"


def relative_error(values: NDArray[np.float64], expected: NDArray[np.float64], scale: float) -> float:
    """The largest difference, relative to `scale`."""
    return float(np.abs(values - expected).max()) / scale if values.shape == expected.shape else np.inf


def _right_samples(journal: Journal, spec: JobSpec) -> Iterator[str]:
    for (_, iteration), parts in journal.computed.items():
        epoch, first, total = spec.batch(iteration)
        for start, count, crc in parts:
            indices = _order(spec, epoch)[start : start + count].astype(np.int64)
            if not first <= start < start + count <= first + total or zlib.crc32(indices.tobytes()) != crc:
                yield f"{journal.worker}: iteration {iteration}: wrong samples for {start} to {start + count}"


def _known_versions(journal: Journal, courses: Sequence[ShardSteps]) -> Iterator[str]:
    for reached in journal.reached:
        last = (-1, -1)
        for attempt, version in reached:
            if (attempt, version) < last:
                yield f"{journal.worker}: version {version} in attempt {attempt} after {last}"
            last = (attempt, version)
            for course in courses:
                # A shard that is killed may have answered what it had no time to write down.
                untold = 0 if attempt == course.attempt else _UNTOLD
                if version > course.extent.get(attempt, 0) + untold:
                    yield (
                        f"{journal.worker} has version {version} of attempt {attempt}, in which "
                        f"{course.name} had {course.extent.get(attempt, 0)} at most"
                    )


def _covers(parts: Sequence[tuple[int, int, int]], start: int, end: int) -> bool:
    """Whether (start, count, ...) cover all from `start` to `end`."""
    for first, count, _ in sorted(parts):
        if first <= start < first + count:
            start = first + count
    return start >= end
