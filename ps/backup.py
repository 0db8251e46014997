"""A shard for redundant execution: a step has the gradients that come first and does not wait for the rest.

This is what TensorFlow's `replicas_to_aggregate` does (Chen et al., 2016), which LB-BSP's section 5.3
compares with. It knows no sockets and no clock.
"""

from idl.errors import NotMemberError
from idl.layout import Layout
from idl.plan import Assignment
from ps.parameters import Contribution
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
        self._lost: dict[int, int] = {}  # start to count, of slices that are not waited for

    def begin(self, part: Assignment, worker: str = "") -> Contribution:
        """A worker starts to push its slice's gradient, or sends it again as its connection broke.

        Raises:
            InvalidRequestError: It is not this iteration's turn, or the slice does not fit in.
            NotMemberError: The slice's worker was taken out.
            UnavailableError: Another connection is bringing the slice.
        """
        if part.iteration == self.version and part.start in self._lost:
            raise NotMemberError(f"the slice at {part.start} was given up: its worker was taken out")
        return super().begin(part, worker)

    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """A slice's worker has gone: do not wait for what has not come; the same may be said again.

        If nothing of a batch of `total` samples can come any more, its step changes no parameter.
        """
        if iteration == self.version and count:
            self._lost[start] = count
            self._total = total

    def check_options(self, worker: str) -> None:
        """A worker may differ: a schedule that counts batches falls behind where some come too late."""

    def drop(self) -> None:
        """Forget all that has come, and the losses, since the last step."""
        super().drop()
        self._lost.clear()

    @property
    def complete(self) -> bool:
        """Whether enough gradients are here, or everything that can come."""
        if sum(map(self._is_whole, self._contributions)) >= self._replicas_to_aggregate:
            return True
        expected = [c for c in self._contributions if c.start not in self._lost]
        samples = sum(c.count for c in expected) + sum(self._lost.values())
        return self._total is not None and samples >= self._total and all(map(self._is_whole, expected))

    def step(self) -> None:
        """Take the optimiser's step with the gradients that are here as a whole."""
        whole = [contribution for contribution in self._contributions if self._is_whole(contribution)]
        if whole:
            self._sum_up(whole, sum(contribution.count for contribution in whole))
            self._settle_options(whole)
            self._apply()
            self._gradient.zero_()
        self._next_batch(whole)
        self._lost.clear()
        self.version += 1
