"""Checks of what must hold of a run under any faults: histories in, violations in words out."""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.plan import JobSpec, permutation
from lab.chaos.batches import Batches
from lab.chaos.ledgers import Journal, ShardSteps

TOLERANCE = 1e-10  # relative error of parameters
_UNRECORDED = 100  # steps that a killed shard may have taken and not written down
_order = lru_cache(maxsize=64)(permutation)


def exactly_once(shard: ShardSteps, spec: JobSpec, batches: Batches) -> Iterator[str]:
    """Check that each step's slices make up its batch, and each epoch's batches have each sample once."""
    counts = np.zeros(spec.dataset_size, dtype=np.int64)
    for iteration, step in enumerate(shard.steps):
        batch = batches(step.attempt, iteration)
        if batch is None:
            yield f"{shard.name}: iteration {iteration} has a batch that is not known"
            continue
        epoch, start, total = batch
        position = start
        for first, count, worker in sorted(step.slices):
            if first != position or count < 1:
                yield f"{shard.name}: iteration {iteration}: {worker} at {first}, where {position} was due"
            position = first + count
            counts[_order(spec, epoch)[first:position]] += 1
        if position != start + total:
            yield f"{shard.name}: iteration {iteration} ends at {position}, not at {start + total}"
        if start + total == spec.dataset_size:
            if wrong := np.flatnonzero(counts != 1).size:
                yield f"{shard.name}: epoch {epoch}: {wrong} samples not used exactly once"
            counts[:] = 0


def sizes_ordered(sizes: Iterable[int], ordered: Collection[int]) -> Iterator[str]:
    """Check that batches have sizes that were asked for."""
    for size in sorted(set(sizes) - set(ordered)):
        yield f"batches of {size} samples, where {', '.join(map(str, sorted(ordered)))} were asked for"


def all_there(shards: Sequence[ShardSteps], iterations: int) -> Iterator[str]:
    """Check that every shard has taken all of the job's steps, in the same attempts."""
    for shard in shards:
        yield from shard.violations
        if len(shard.steps) != iterations:
            yield f"{shard.name}: {len(shard.steps)} steps at the end, not {iterations}"
    first = shards[0]
    for other in shards[1:]:
        for mine, theirs in zip(first.steps, other.steps, strict=False):
            if mine.attempt != theirs.attempt:
                yield (
                    f"iteration {mine.iteration}: {first.name} has the step of attempt {mine.attempt}, "
                    f"{other.name} that of attempt {theirs.attempt}"
                )


def journals_agree(
    journals: Iterable[Journal], shards: Sequence[ShardSteps], spec: JobSpec, batches: Batches
) -> Iterator[str]:
    """Check that workers computed what the ledgers say they did, and had the versions that shards had."""
    by_name = {journal.worker: journal for journal in journals}
    for journal in by_name.values():
        yield from _right_samples(journal, spec, batches)
        yield from _known_versions(journal, shards)
    for shard in shards:
        for step in shard.steps:
            for start, count, worker in step.slices:
                journal = by_name.get(worker, Journal(worker))
                computed = journal.computed.get((step.attempt, step.iteration), [])
                if not _covers(computed, start, start + count):
                    yield (
                        f"{shard.name}: iteration {step.iteration} has {start} to {start + count} from "
                        f"{worker}, which computed {[part[:2] for part in computed]}"
                    )


def history_agrees(
    records: Sequence[Mapping[str, Any]], shard: ShardSteps, batches: Batches, *, unreported: int = 0
) -> Iterator[str]:
    """Check that the manager's records are of whole batches, each iteration at most once, in order.

    Records that it had not written when it died may be missing, but only before a new attempt: within one,
    it plans an iteration when the one before is complete. A shard's steps have each iteration's attempt.
    Where workers take the steps themselves, one that leaves may not have reported an attempt's last ones, of
    which there are `unreported` at most.
    """
    iterations = len(shard.steps)
    if iterations and not records:
        yield f"manager: no record of any of {iterations} iterations"
    last, attempt = -1, 0  # of the record before
    for record in records:
        iteration, parts = record["iteration"], record["workers"].values()
        counted = sum(part["batch_size"] for part in parts)
        of = shard.steps[iteration].attempt if iteration < iterations else record["attempt"]
        batch = batches(of, iteration)
        due = None if batch is None else batch[2]
        after = shard.steps[iteration + 1 : iteration + 1 + unreported]
        if any(step.attempt != of for step in after):
            slices = shard.steps[iteration].slices
            due = sum(count for _, count, worker in slices if worker in record["workers"])
        if batch is not None and not (counted == due and record["total"] == batch[2]):
            yield f"manager: iteration {iteration} has {counted} samples of {record['total']}, not {due}"
        if not last < iteration < iterations:
            yield f"manager: iteration {iteration} of {iterations} after iteration {last}"
            continue
        if iteration > last + 1 and shard.steps[iteration].attempt == attempt:
            yield f"manager: no record from {last + 1} to {iteration - 1}, all in attempt {attempt}"
        last, attempt = iteration, shard.steps[iteration].attempt


def parameters_equal(
    what: str, values: NDArray[np.float64], expected: NDArray[np.float64], scale: float
) -> Iterator[str]:
    """Check that parameters, or their fingerprints, are those of one process, to `TOLERANCE` of `scale`."""
    error = relative_error(values, expected, scale)
    if not error <= TOLERANCE:
        yield f"{what}: differs by {error:.2g} from one process on the whole batches"


def bits_equal(
    finals: Mapping[str, tuple[int, NDArray[np.float64]]], calm: Mapping[str, tuple[int, NDArray[np.float64]]]
) -> Iterator[str]:
    """Check that workers ended with the version and the very bits of parameters of a run without faults."""
    if not calm:
        yield "there are no final parameters of a run without faults"
    for worker, (version, parameters) in finals.items():
        for other, (calm_version, expected) in calm.items():
            if version != calm_version:
                yield f"{worker}: ended with version {version}; without faults, {other} with {calm_version}"
            elif differ := int((parameters.view(np.uint64) != expected.view(np.uint64)).sum()):
                yield f"{worker}: {differ} final parameters have other bits than {other}'s without faults"


def finals_equal(finals: Mapping[str, tuple[int, NDArray[np.float64]]]) -> Iterator[str]:
    """Check that workers that take the steps themselves ended with the same bits."""
    by_bits: dict[bytes, list[str]] = {}
    for worker, (_, parameters) in finals.items():
        by_bits.setdefault(parameters.tobytes(), []).append(worker)
    if len(by_bits) > 1:
        yield f"workers ended with other bits than others: {' and '.join(map(', '.join, by_bits.values()))}"


def attempts_agree(journals: Iterable[Journal]) -> Iterator[str]:
    """Check that all members of an attempt's group began it with the same version."""
    begins: dict[int, tuple[int, str]] = {}
    for journal in journals:
        for reached in journal.reached:
            for attempt, version in dict(reversed(reached)).items():
                first, whose = begins.setdefault(attempt, (version, journal.worker))
                if first != version:
                    yield f"attempt {attempt} begins at {version} on {journal.worker}, at {first} on {whose}"


def relative_error(values: NDArray[np.float64], expected: NDArray[np.float64], scale: float) -> float:
    """Return the largest difference, relative to `scale`; infinite for different shapes."""
    return float(np.abs(values - expected).max()) / scale if values.shape == expected.shape else np.inf


def _right_samples(journal: Journal, spec: JobSpec, batches: Batches) -> Iterator[str]:
    for (attempt, iteration), parts in journal.computed.items():
        for start, count, crc, *told in parts:
            # What a shard never took the step of was as the worker was told.
            epoch, first, total = batches(attempt, iteration) or told
            if not count and first + total == spec.dataset_size:
                continue  # a part in the last batch of an epoch, which may be of too few samples for all
            indices = _order(spec, epoch)[start : start + count].astype(np.int64)
            if not first <= start < start + count <= first + total or zlib.crc32(indices.tobytes()) != crc:
                yield f"{journal.worker}: iteration {iteration}: wrong samples for {start} to {start + count}"


def _known_versions(journal: Journal, shards: Sequence[ShardSteps]) -> Iterator[str]:
    for reached in journal.reached:
        last = (-1, -1)
        for attempt, version in reached:
            if (attempt, version) < last:
                yield f"{journal.worker}: version {version} in attempt {attempt} after {last}"
            last = (attempt, version)
            for shard in shards:
                # A killed shard may have answered for steps that it had no time to write down.
                unrecorded = 0 if attempt == shard.attempt else _UNRECORDED
                if version > shard.extent.get(attempt, 0) + unrecorded:
                    yield (
                        f"{journal.worker} has version {version} of attempt {attempt}, in which "
                        f"{shard.name} had {shard.extent.get(attempt, 0)} at most"
                    )


def _covers(parts: Sequence[tuple[int, ...]], start: int, end: int) -> bool:
    """Return whether the parts, (start, count, ...) each, cover all from `start` to `end`."""
    for first, count, *_ in sorted(parts):
        if first <= start < first + count:
            start = first + count
    return start >= end
