"""Sizes that do not depend on what is measured: the one that there is, or those of a schedule by epochs."""

from collections.abc import Sequence

from batchsize_manager.sizers.base import Choice, Situation, Sizer


class Fixed(Sizer):
    """A sizer that leaves the batch as large as it is."""

    every = 0

    def choose(self, at: Situation) -> Choice | None:
        """Return None; see `Sizer.choose`."""
        return None


class Schedule(Sizer):
    """A sizer that follows the script's sizes by epoch.

    Batches that grow where others lower the learning rate do as well, in fewer steps (Smith et al., Don't
    Decay the Learning Rate, Increase the Batch Size).

    Args:
        first: Samples of a whole batch before the first milestone.
        milestones: (epoch, samples) from that epoch on, ascending by epoch.
    """

    by_epoch = True

    def __init__(self, first: int, milestones: Sequence[tuple[int, int]]) -> None:
        self._sizes = [(0, first), *milestones]

    def choose(self, at: Situation) -> Choice:
        """Return the size of the epoch; see `Sizer.choose`."""
        epoch, size = next(one for one in reversed(self._sizes) if one[0] <= at.epoch)
        return Choice(size, f"the script's size from epoch {epoch} on")
