"""One shard of one job: its parameters, the sum of the weighted gradients, and the optimiser's steps.

It knows slices and samples, but no sockets and no clock. Gradients come in pieces as they arrive and are
added at once, while they are in the cache; nothing holds a whole gradient, except in deterministic mode.
A step has everybody's gradient (BSP); `backup` and `asynchronous` have the other kinds of shard.
"""

from collections.abc import Sequence

import torch

from ps.parameters import DTYPES, Contribution, Group, Layout, Parameters
from rpc.errors import InvalidRequestError, NotMemberError, UnavailableError

_PIECE = 2**18  # bytes; a piece and its part of the sum stay in a core's cache


class Shard(Parameters):
    """The parameters of one job that one server process holds.

    An iteration is over when the samples that were pushed or lost sum to the batch's total; then the
    gradient sum(x_i * g_i) / sum(x_i) (LB-BSP, section 3.4) takes one step of the optimiser. The sum is
    over the samples whose gradient has arrived, for each element: if a worker died while sending, the
    elements that had come count with its samples, the others without.

    Args:
        layout: What the shard holds.
        deterministic: Whether gradients are held until all are there and summed in the order of their
            slices, so that two runs are the same to the last bit, at the cost of a copy for each worker.
    """

    def __init__(self, layout: Layout, deterministic: bool = False) -> None:
        super().__init__(layout)  # `_gradient` is the sum of (x_i / total) * g_i
        self._deterministic = deterministic
        self._total: int | None = None  # samples of the current batch, once a push has told
        self._contributions: dict[int, Contribution] = {}  # by start
        self._stepped: dict[int, Contribution] = {}  # those of the last step
        self._lost: dict[int, int] = {}  # start to count, for slices that never began to arrive

    def opened(self, worker: str, groups: Sequence[Group]) -> None:
        """All share the options of the worker that came first."""

    def has_used(self, iteration: int, start: int, count: int, worker: str = "") -> bool:
        """Whether the last step was taken with this slice: its push came, only the answer got lost."""
        used = self._stepped.get(start)
        return iteration == self.version - 1 and used is not None and used.count == count

    def begin(self, iteration: int, start: int, count: int, total: int, worker: str = "") -> Contribution:
        """A worker starts to push its slice's gradient, or goes on where its connection broke.

        Raises:
            InvalidRequestError: It is not this iteration's turn, or the slice does not fit in.
            NotMemberError: The slice's worker was taken out.
            UnavailableError: Another connection is bringing the slice.
        """
        if not self.initialised:
            raise InvalidRequestError("push before the parameters are initialised")
        if iteration != self.version:
            raise InvalidRequestError(
                f"push for iteration {iteration}, but the parameter server is at {self.version}"
            )
        if self._total not in (None, total):
            raise InvalidRequestError(f"total {total}, but others pushed for a batch of {self._total}")
        known = self._contributions.get(start)
        if known is not None and known.count == count:
            if known.open:
                raise UnavailableError(f"the slice at {start} is still coming through another connection")
            if known.lost:
                raise NotMemberError(f"the slice at {start} was given up: its worker was taken out")
            known.open = True
            return known
        for other in self._contributions.values():
            if start < other.end and other.start < start + count:
                raise InvalidRequestError(
                    f"slice {start} to {start + count} overlaps {other.start} to {other.end} of another"
                )
        if start in self._lost:
            raise NotMemberError(f"the slice at {start} was given up: its worker was taken out")
        if sum(c.count for c in self._contributions.values()) + count > total:
            raise InvalidRequestError(f"slice of {count} samples: more than are left of a batch of {total}")
        self._total = total
        held = self._buffer() if self._deterministic else None
        contribution = self._contributions[start] = Contribution(start, count, open=True, held=held)
        return contribution

    def add(self, contribution: Contribution, piece: torch.Tensor) -> None:
        """Add the gradient's next elements, (n,), to the sum."""
        if self._contributions.get(contribution.start) is not contribution:
            return  # the step has been taken without the rest of it
        begin = contribution.done
        contribution.done += len(piece)
        if contribution.held is not None:
            contribution.held[begin : contribution.done] = piece
        else:
            assert self._total is not None
            weight = contribution.count / self._total
            self._gradient[begin : contribution.done].add_(piece, alpha=weight)

    def broken(self, contribution: Contribution) -> None:
        """What has come is in the sum already: whoever brings the slice again goes on from here."""
        contribution.open = False

    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """A slice's worker has gone: do not wait for what has not come; the same may be said again.

        If nothing of a batch of `total` samples can come any more, its step changes no parameter.
        """
        if iteration != self.version or not count:
            return
        if start in self._contributions:
            self._contributions[start].lost = True
        else:
            self._lost[start] = count
            self._total = total

    @property
    def complete(self) -> bool:
        """Whether everything of this iteration that can come has come."""
        samples = sum(c.count for c in self._contributions.values()) + sum(self._lost.values())
        arriving = any(c.done < self.layout.elements and not c.lost for c in self._contributions.values())
        return self._total is not None and not arriving and samples >= self._total

    def step(self) -> None:
        """Take the optimiser's step with what has come."""
        assert self._total is not None
        if self._deterministic:
            for _, contribution in sorted(self._contributions.items()):
                assert contribution.held is not None
                held = contribution.held[: contribution.done]
                self._gradient[: contribution.done].add_(held, alpha=contribution.count / self._total)
                self._spare.append(contribution.held)
                contribution.held = None
        self._normalise(self._total)
        if self._contributions:
            self._optimizer.step()
        self._gradient.zero_()
        self._stepped, self._contributions = self._contributions, {}
        self._lost.clear()
        self._total = None
        self.version += 1

    def _normalise(self, total: int) -> None:
        """Turn the sum over `total` into a mean over the samples that arrived, element by element."""
        ends = sorted({c.done for c in self._contributions.values()} | {self.layout.elements})
        begin = 0
        for end in ends:
            samples = sum(c.count for c in self._contributions.values() if c.done >= end)
            if samples and samples != total:
                self._gradient[begin:end].mul_(total / samples)
            begin = end


class GradientSink:
    """Takes a gradient from the wire piece by piece into a shard; see `rpc.service.Sink`."""

    def __init__(self, shard: Parameters, contribution: Contribution) -> None:
        self._shard = shard
        self._contribution = contribution
        self._itemsize = shard.layout.nbytes // max(1, shard.layout.elements)
        self._total_bytes = shard.layout.nbytes
        buffer = bytearray(min(_PIECE, max(self._itemsize, self._total_bytes)))
        self._bytes = memoryview(buffer)
        self._piece = torch.frombuffer(buffer, dtype=DTYPES[shard.layout.dtype])
        self._filled = 0  # bytes of the piece
        self._received = 0  # bytes in all
        self._skip = contribution.done * self._itemsize  # bytes that an earlier connection brought

    def get_buffer(self) -> memoryview:
        """The rest of the piece."""
        left = self._total_bytes - self._received
        return self._bytes[self._filled : self._filled + left]

    def advance(self, count: int) -> None:
        """Add the piece once it is full."""
        self._filled += count
        self._received += count
        if self._filled == len(self._bytes) or self._received == self._total_bytes:
            first = self._received - self._filled
            fresh = max(0, self._skip - first) // self._itemsize
            piece = self._piece[fresh : self._filled // self._itemsize]
            if len(piece):
                self._shard.add(self._contribution, piece)
            self._filled = 0

    def close(self) -> None:
        """All has arrived."""
        self._contribution.open = False

    def abort(self) -> None:
        """The connection broke."""
        self._shard.broken(self._contribution)
