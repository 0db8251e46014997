"""A shard for redundant execution: a step has the gradients that come first and does not wait for the rest.

This is what TensorFlow's `replicas_to_aggregate` does (Chen et al., 2016), which LB-BSP's section 5.3
compares with. It knows no sockets and no clock.
"""

from ps.parameters import Contribution, Layout
from ps.shard import Shard


class BackupShard(Shard):
    """Steps with the mean over the samples of so many gradients, or of all where fewer can come.

    A gradient counts whole or not at all: each is held until the step, and one that is late, or whose
    connection broke for good, leaves no trace.

    Args:
        layout: What the shard holds.
        replicas_to_aggregate: How many gradients make a step; more, if they arrive in the same moment.
    """

    def __init__(self, layout: Layout, replicas_to_aggregate: int) -> None:
        super().__init__(layout, deterministic=True)
        self._replicas_to_aggregate = replicas_to_aggregate

    def has_used(self, iteration: int, start: int, count: int, worker: str = "") -> bool:
        """Whether the iteration's step was taken, with this slice or without."""
        return self.initialised and iteration < self.version

    def broken(self, contribution: Contribution) -> None:
        """Forget the part that has come: whoever brings the slice again begins anew."""
        super().broken(contribution)
        start = contribution.start
        if self._contributions.get(start) is contribution and not self._is_whole(contribution):
            del self._contributions[start]
            if contribution.lost:
                self._lost[start] = contribution.count

    @property
    def complete(self) -> bool:
        """Whether enough gradients are here, or everything that can come."""
        whole = sum(self._is_whole(contribution) for contribution in self._contributions.values())
        return whole >= self._replicas_to_aggregate or super().complete

    def step(self) -> None:
        """Take the optimiser's step with the gradients that are here as a whole."""
        self._contributions = {s: c for s, c in self._contributions.items() if self._is_whole(c)}
        super().step()

    def _is_whole(self, contribution: Contribution) -> bool:
        return contribution.done == self.layout.elements
