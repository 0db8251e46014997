"""The batches of a run: those that the script's schedule makes due, or those that a sizer has chosen.

What a sizer chooses depends on measurements, and may be another size when a job has gone back and repeats
iterations. So these batches are found in the shards' ledgers, by attempt.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from idl.plan import JobSpec
from lab.chaos.ledgers import Rewind, Step

Batch = tuple[int, int, int]
"""Epoch, first position there, and samples."""

Batches = Callable[[int, int], Batch | None]
"""Function from an attempt and an iteration to the batch; None where no step of it is known."""


def scheduled(spec: JobSpec) -> Batches:
    """Return the batches that a script's sizes make due, the same in every attempt."""
    sizes = dict(spec.milestones)
    found: list[Batch] = []
    size = spec.total_batch_size

    def batch(attempt: int, iteration: int) -> Batch:
        nonlocal size
        while len(found) <= iteration:
            epoch, start = _next(spec, found[-1] if found else None)
            size = sizes.get(epoch, size)
            found.append((epoch, start, min(size, spec.dataset_size - start)))
        return found[iteration]

    return batch


def taken(
    spec: JobSpec, ledgers: Mapping[str, Iterable[Step | Rewind]], least: int, most: int
) -> tuple[Batches, list[str]]:
    """Return the batches of the steps in ledgers, each of which begins where the one before it ends.

    Beside them it is said where shards differ, or sizes are not from `least` to `most`, those left at
    an epoch's end aside.
    """
    found: dict[tuple[int, int], tuple[Batch, str]] = {}
    violations = []
    for shard, entries in ledgers.items():
        for entry, held in _replayed(spec, entries):
            if isinstance(entry, Rewind):
                continue
            attempt, iteration, batch = entry.attempt, entry.iteration, held[-1]
            epoch, start, total = batch
            other, whose = found.setdefault((attempt, iteration), (batch, shard))
            what = f"{shard}: iteration {iteration} in attempt {attempt} has {total} samples"
            if other != batch:
                violations.append(f"{what} from {start} in epoch {epoch}, but {other} at {whose}")
            if not (least <= total <= most and start + total <= spec.dataset_size) and not (
                total == spec.dataset_size - start <= most
            ):
                violations.append(f"{what} from {start}, not from {least} to {most}")
    return lambda attempt, iteration: found.get((attempt, iteration), (None, ""))[0], violations


def same_versions(
    spec: JobSpec, entries: Iterable[Step | Rewind], final: Sequence[Batch | None]
) -> dict[int, int]:
    """Return by attempt the last version that came of the batches that the job has in the end.

    Those are `final`, by iteration. A job that has gone back may repeat iterations with other sizes, so that
    versions before that differ.
    """
    last: dict[int, int] = {}
    other: int | None = None  # first iteration with another batch
    for entry, held in _replayed(spec, entries):
        iteration = len(held) - 1
        if isinstance(entry, Rewind):
            other = None if other is None or entry.version <= other else other
        elif other is None and held[-1:] != list(final[iteration : iteration + 1]):
            other = iteration
        last[entry.attempt] = max(last.get(entry.attempt, 0), len(held) if other is None else other)
    return last


def scaled(sizes: Iterable[int], workers: int, most: int) -> set[int]:
    """Return the sizes of batches that follow the number of workers, from 1 to `most` of them."""
    members = range(1, most + 1)
    return {max(1, (2 * size * here + workers) // (2 * workers)) for size in sizes for here in members}


def sizes_of(spec: JobSpec, batches: Iterable[Batch | None]) -> list[int]:
    """Return the sizes of batches in order, those left out that end an epoch and so may be smaller."""
    return [one[2] for one in batches if one is not None and one[1] + one[2] < spec.dataset_size]


def _replayed(spec: JobSpec, entries: Iterable[Step | Rewind]) -> Iterator[tuple[Step | Rewind, list[Batch]]]:
    """Yield each line of a ledger with the batches that are held after it, in one list."""
    held: list[Batch] = []
    for entry in entries:
        if isinstance(entry, Rewind):
            del held[entry.version :]
        else:
            epoch, start = _next(spec, held[-1] if held else None)
            held.append((epoch, start, sum(count for _, count, _ in entry.slices)))
        yield entry, held


def _next(spec: JobSpec, last: Batch | None) -> tuple[int, int]:
    """Return epoch and first position of the batch after another, or of the first one."""
    if last is None:
        return 0, 0
    epoch, start, total = last
    return (epoch, start + total) if start + total < spec.dataset_size else (epoch + 1, 0)
