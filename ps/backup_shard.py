"""A shard for redundant execution: a step takes the gradients that arrive first and waits for no others.

This is what TensorFlow's `replicas_to_aggregate` does (Chen et al., 2016), with which LB-BSP compares itself
in section 5.3. This module knows no sockets and no clock.
"""

from idl.errors import NotMemberError
from idl.layout import Layout
from idl.plan import Assignment
from ps.parameters import Contribution
from ps.shard import Shard


class BackupShard(Shard):
    """A shard that steps with the mean over the samples of n gradients, or of all where fewer can arrive.

    A gradient counts completely or not at all: each is held until the step, and one that arrives after it,
    or whose connection broke for good, leaves no trace.

    Args:
        layout: Layout of the shard's part of the parameters.
        replicas_to_aggregate: Gradients that make a step, n; those that arrive at the same moment count too.
    """

    def __init__(self, layout: Layout, replicas_to_aggregate: int) -> None:
        super().__init__(layout, deterministic=True)
        self._replicas_to_aggregate = replicas_to_aggregate
        self._lost: dict[int, int] = {}  # start to count, of slices that will not arrive

    def begin(
        self, part: Assignment, worker: str = "", early: str = "", weight: float | None = None
    ) -> Contribution:
        """Begin a push of a slice's gradient, or begin it again after its connection broke.

        Raises:
            InvalidRequestError: The shard is at another iteration, or the slice does not fit into the batch.
            NotMemberError: The slice's worker was removed from the job.
            UnavailableError: Another connection is sending the slice.
        """
        if part.iteration == self.version and part.start in self._lost:
            raise NotMemberError(f"the slice at {part.start} was given up: its worker was taken out")
        return super().begin(part, worker, early, weight)

    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """Stop waiting for a slice whose worker has left the job; may be called again for the same slice.

        If no slice of a batch of `total` samples can arrive any more, its step changes no parameter.
        """
        if iteration == self.version and count:
            self._lost[start] = count
            self._total = total

    def check_options(self, worker: str) -> None:
        """Accept any options: a schedule that counts batches falls behind where gradients arrive too late."""

    def drop(self) -> None:
        """Drop all gradients, and the list of lost slices, since the last step."""
        super().drop()
        self._lost.clear()

    @property
    def is_complete(self) -> bool:
        """Return whether enough gradients have arrived, or all that can."""
        if sum(map(self._is_whole, self._contributions)) >= self._replicas_to_aggregate:
            return True
        expected = [c for c in self._contributions if c.start not in self._lost]
        samples = sum(c.count for c in expected) + sum(self._lost.values())
        return self._total is not None and samples >= self._total and all(map(self._is_whole, expected))

    def step(self) -> None:
        """Take the optimiser's step with the gradients that have arrived completely."""
        whole = [contribution for contribution in self._contributions if self._is_whole(contribution)]
        if whole:
            self._sum_up(whole, total := sum(contribution.count for contribution in whole))
            self._divide(whole, total, self.layout.elements)
            self._settle_options(whole)
            self._note_differences(whole)
            self._measure(whole)
            self._apply()
            self._gradient.zero_()
        self._next_batch(whole)
        self._lost.clear()
        self.version += 1
