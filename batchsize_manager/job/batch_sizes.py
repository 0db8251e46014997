"""Places and sizes of a job's batches in the data; pure values, nothing of the wire."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from idl.cuts import Cuts
from idl.plan import JobSpec, Scaling

_GAIN_EVERY = 10  # iterations, after which the gain follows the noise
_SAME_GAIN = 0.01  # relative difference that is no change
_CHANGES = 20  # the last ones, which are kept


@dataclass(frozen=True, slots=True)
class BatchChange:
    """A change of the size of a job's batches."""

    iteration: int  # the first iteration with the new size
    epoch: int  # the epoch of that iteration's batch
    start: int  # the first position of that batch in the epoch
    size: int  # samples of a whole batch from then on
    gain: float = 1.0  # `Scaling.gain` of each iteration from then on; if that changes, it is a change, too
    progress: float = 0.0  # `Scaling.progress` of the first one


class Batches:
    """The positions and sizes of a job's batches.

    They are those of `JobSpec.batch` until the size changes: because an operator changes it or, with scaling,
    because it follows the number of members that a batch is planned for. From then on, each batch begins
    where the one before it ends. The changes of the size determine every batch, so nothing else is saved. Of
    many, only the last ones are kept: a job goes back further only to where its shards know the position.

    Args:
        spec: The data set, its order, and the first size of the batches.
        members: The number of members for which a batch has `total` samples; None: the size does not follow
            the number of members.
        first_iteration: The job's first iteration.
        position: Epoch and first position of that iteration's batch; None: as `JobSpec.batch` computes them.
        progress: `Scaling.progress` of that iteration; None: the iteration.
    """

    def __init__(
        self,
        spec: JobSpec,
        members: int | None,
        first_iteration: int,
        position: tuple[int, int] | None,
        progress: float | None = None,
    ) -> None:
        # Samples of a whole batch for `members` members, or for any number; may be set between two batches.
        self.total = spec.total_batch_size
        self.spec = spec
        self._members = members
        epoch, start = position or spec.batch(first_iteration)[:2]
        progress = float(first_iteration) if progress is None else progress
        size = spec.total_batch_size
        self._changes = [BatchChange(first_iteration, epoch, start, size, progress=progress)]

    @property
    def changes(self) -> tuple[BatchChange, ...]:
        """The last changes of the size, oldest first; as long as they are few, the job's beginning before."""
        return tuple(self._changes)

    @property
    def last_change(self) -> BatchChange:
        """The last change of the size; without any, the job's beginning."""
        return self._changes[-1]

    def restore(self, changes: Sequence[BatchChange]) -> None:
        """Replace the changes of the size by those of a saved job."""
        self._changes = list(changes)

    def size(self, members: int, total: int | None = None) -> int:
        """Return the samples of a whole batch for `members` members, with another `total` if given."""
        total = self.total if total is None else total
        if self._members is None:
            return total
        scaled = (2 * total * members + self._members) // (2 * self._members)  # rounded to the nearest
        return max(1, min(scaled, self.spec.dataset_size))

    def padded(self, members: int, total: int | None = None) -> int:
        """Return `size` rounded up to whole micro-batches, as bounds are; `size` in a job without them."""
        return self.cuts(members, total).padded

    def cuts(self, members: int, total: int | None = None) -> Cuts:
        """Return the cuts of a whole batch of `size` samples."""
        return self.spec.cuts(self.size(members, total))

    def go_on(self, iteration: int, epoch: int, start: int) -> None:
        """Have an iteration's batch begin at a position that the shards know, even if another was computed.

        Args:
            iteration: The iteration.
            start: The first position of its batch in the epoch.
        """
        self._go_back(iteration)
        last = self._changes[-1]
        change = BatchChange(iteration, epoch, start, last.size, last.gain, self._progress(iteration))
        if not self.knows(iteration):
            self._changes = [change]
        elif self._batch(iteration)[:2] != self._after(change, iteration)[:2]:
            self._changes.append(change)

    def take(
        self, iteration: int, members: int, gain_of: Callable[[int], float] = lambda size: 1.0
    ) -> tuple[int, int, int]:
        """Take an iteration's batch, from it on for `members` members.

        Args:
            iteration: The iteration.
            gain_of: Function from another size than the script's to `Scaling.gain`.

        Returns:
            Epoch, first position and size.
        """
        self._go_back(iteration)
        size, last = self.size(members), self._changes[-1]
        gain = last.gain
        if size == self.spec.total_batch_size:
            gain = 1.0
        elif size != last.size or iteration % _GAIN_EVERY == 0:
            gain = gain_of(size)
        if size != last.size or abs(gain - last.gain) > _SAME_GAIN * last.gain:
            epoch, start, _ = self._batch(iteration)
            progress = self._progress(iteration)
            while self._changes and self._changes[-1].iteration >= iteration:
                self._changes.pop()
            self._changes.append(BatchChange(iteration, epoch, start, size, gain, progress))
            del self._changes[:-_CHANGES]
        return self._batch(iteration)

    def scaling(self, iteration: int) -> Scaling | None:
        """Return the comparison of an iteration's batch, the last one taken, with those of the script's size.

        Returns:
            None while all batches have had that size.
        """
        last, progress = self._changes[-1], self._progress(iteration)
        if (last.size, progress) == (self.spec.total_batch_size, iteration):
            return None
        return Scaling(last.size, last.gain, progress)

    def following(self, iteration: int) -> tuple[int, int]:
        """Return epoch and first position of an iteration's batch, whatever its size will be."""
        self._go_back(iteration)
        return self._batch(iteration)[:2]

    def knows(self, iteration: int) -> bool:
        """Return whether the position of an iteration's batch follows from the changes that are kept."""
        return iteration >= self._changes[0].iteration

    def _go_back(self, iteration: int) -> None:
        while len(self._changes) > 1 and self._changes[-1].iteration > iteration:
            self._changes.pop()

    def _progress(self, iteration: int) -> float:
        last = self._changes[-1]
        return max(0.0, last.progress + (iteration - last.iteration) * last.gain)

    def _batch(self, iteration: int) -> tuple[int, int, int]:
        """Return an iteration's batch, with the size since the last change."""
        return self._after(self._changes[-1], iteration)

    def _after(self, last: BatchChange, iteration: int) -> tuple[int, int, int]:
        samples = self.spec.dataset_size
        epoch, start, after = last.epoch, last.start, iteration - last.iteration
        left = self._in(samples - start, last.size)  # batches in that epoch
        if after < left:
            start += after * last.size
        else:
            epochs, index = divmod(after - left, self._in(samples, last.size))
            epoch, start = epoch + 1 + epochs, index * last.size
        return epoch, start, min(last.size, samples - start)

    def _in(self, samples: int, size: int) -> int:
        """Return the number of batches in the last `samples` samples of an epoch."""
        return samples // size if self.spec.drop_last else -(-samples // size)
