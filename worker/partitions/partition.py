"""A worker's part of the data: its own samples without those handed over, and those that it has received.

A partition chooses the samples that are used next, and records which worker has which sample: a sample is
used by its origin, the worker whose data set has it, or by one other worker. The origin decides. A sample on
its way may not be used until its receiver is known to have it, or to have left. No wire, no thread, no clock,
and any kind of sample. `idl/data_partition.thrift` has the rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError, UnavailableError
from idl.traversal import Traversal


@dataclass(frozen=True, slots=True)
class OtherWorker:
    """Another worker, in one incarnation."""

    worker: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ReceivedSample:
    """A sample that another worker has handed over."""

    origin: OtherWorker  # the worker whose data set has it
    index: int  # its index in the origin's data set
    sample: Any  # the sample itself
    size: int  # bytes of memory that it takes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples that are handed over together, all or none."""

    number: int  # the chunk's number, larger than those of all chunks before
    receiver: OtherWorker  # the worker that they are sent to
    own: tuple[int, ...]  # indices of samples of the sender's data set
    returned: tuple[ReceivedSample, ...]  # samples of the receiver's data set that the sender has

    def __len__(self) -> int:
        return len(self.own) + len(self.returned)


class TransferOutcome(Enum):
    """The outcome of a chunk's handover."""

    TAKEN = auto()
    REFUSED = auto()  # the receiver certainly has none of it
    GONE = auto()  # the receiver is no member any more, or is another incarnation


class Partition:
    """The samples of one worker. Not to be used by several threads at once.

    Args:
        samples: Number of samples in its own data set; at least 1.
        incarnation: The incarnation as which it takes part, until it rejoins as another.
        seed: Seed of the order in which samples are used, and of the choice of those handed over.
        room: Most bytes of other workers' samples that are taken.
    """

    def __init__(self, samples: int, incarnation: str, seed: int | Sequence[int], room: int) -> None:
        self.incarnation = incarnation  # the present incarnation
        self.generation = -1  # the generation of the present members; -1 before the first
        self._random = np.random.default_rng(seed)
        self._room = room
        self._members: dict[str, str] = {}  # name to incarnation
        self._here = np.ones(samples, dtype=bool)  # which of its own it may use
        self._away: dict[int, OtherWorker] = {}  # by index, the holders of samples that have arrived there
        self._received: dict[tuple[str, int], ReceivedSample] = {}  # by origin's name and index
        self._moves: dict[str, int] = {}  # by receiver's name, the samples still to be handed over
        self._planned = False  # whether moves were planned in this generation
        self._chunk: Chunk | None = None  # on its way
        self._number = 0  # of the last chunk
        # The last chunk's number and refusal, by its sender.
        self._answered: dict[OtherWorker, tuple[int, EvenpaceError | None]] = {}
        self._order: list[int | ReceivedSample] = []  # the rest of this traversal, last first
        self._drawn = 0  # in this generation
        self._iterations: tuple[int, int] | None = None  # the first and the last in this generation

    def __len__(self) -> int:
        """Return the number of samples that the worker may use."""
        return int(self._here.sum()) + len(self._received)

    # -- using them

    def draw(self, count: int, iteration: int) -> list[int | ReceivedSample]:
        """Return the next samples, for an iteration of the job; for its own samples, their indices.

        Each traversal goes through all samples present when it begins, in a random order of its own.
        """
        drawn: list[int | ReceivedSample] = []
        while len(drawn) < count:
            if not self._order:
                self._begin_traversal()
            sample = self._order.pop()
            if self._may_use(sample):
                drawn.append(sample)
        self._drawn += count
        first, last = self._iterations or (iteration, iteration)
        self._iterations = (first, max(last, iteration))
        return drawn

    def progress(self) -> Traversal:
        """Return the progress to be reported."""
        moved = self._planned and not self._moves and self._chunk is None
        iterations = self._iterations[1] - self._iterations[0] + 1 if self._iterations else 0
        return Traversal(self.generation, len(self), self._drawn, iterations, moved)

    # -- membership

    def note(self, generation: int, members: Mapping[str, str]) -> None:
        """Begin a generation with these members, incarnations by name.

        Own samples of members that have left may be used again; samples received from an earlier incarnation
        of a member are dropped.
        """
        self.generation = generation
        self._members = dict(members)
        if self._chunk is not None and not self._is_member(self._chunk.receiver):
            self.settle(self._chunk, TransferOutcome.GONE)
        for index, holder in list(self._away.items()):
            if not self._is_member(holder):
                self._take_back(index)
        for key, sample in list(self._received.items()):
            if (
                self._members.get(sample.origin.worker, sample.origin.incarnation)
                != sample.origin.incarnation
            ):
                del self._received[key]
        self._answered = {peer: last for peer, last in self._answered.items() if self._is_member(peer)}
        self._moves.clear()
        self._planned = False
        self._order.clear()
        self._drawn, self._iterations = 0, None

    def evict(self, incarnation: str) -> None:
        """Drop all received samples, since the worker was removed; it will rejoin as another incarnation."""
        if self._chunk is not None:
            self.settle(self._chunk, TransferOutcome.TAKEN)  # as it may have been
        self._received.clear()
        self._members.clear()
        self._moves.clear()
        self._answered.clear()
        self.generation = -1
        self.incarnation = incarnation

    def rejoin(self) -> None:
        """Take back all own samples, which no other worker may use after the worker rejoins."""
        self._away.clear()
        self._here[:] = True

    # -- handing over

    def plan(self, moves: Mapping[str, int]) -> None:
        """Set the number of samples to hand over to each member; later calls in a generation are ignored."""
        if moves and not self._planned:
            self._moves = dict(moves)
            self._planned = True

    def next_chunk(self, limit: int) -> Chunk | None:
        """Return the chunk on its way, or else choose one of up to `limit` samples, not used from now on.

        Samples of the receiver's data set go first. Others are chosen at random among the worker's own, of
        which at least one stays.

        Returns:
            The chunk; None if there is nothing to send.
        """
        while self._chunk is None and self._moves:
            worker, count = next(iter(self._moves.items()))
            self._chunk = self._choose(worker, min(count, limit))
            left = count - len(self._chunk) if self._chunk is not None else 0
            if left:
                self._moves[worker] = left
            else:
                del self._moves[worker]
        return self._chunk

    def settle(self, chunk: Chunk, outcome: TransferOutcome) -> None:
        """Note the outcome of the chunk on its way; other chunks are ignored."""
        if chunk is not self._chunk:
            return
        self._chunk = None
        if outcome is TransferOutcome.TAKEN:
            self._away.update(dict.fromkeys(chunk.own, chunk.receiver))
            return
        self._here[list(chunk.own)] = True
        self._moves.pop(chunk.receiver.worker, None)
        if outcome is TransferOutcome.REFUSED:
            # A receiver that has left may or may not have them: since they are its own, they are dropped.
            self._received.update({(sample.origin.worker, sample.index): sample for sample in chunk.returned})

    def _choose(self, worker: str, count: int) -> Chunk | None:
        incarnation = self._members.get(worker)
        if incarnation is None:
            return None
        receiver = OtherWorker(worker, incarnation)
        returned = [sample for sample in self._received.values() if sample.origin == receiver][:count]
        own = self._random.permutation(np.flatnonzero(self._here))[1:][: count - len(returned)]
        if not returned and not own.size:
            return None
        for sample in returned:
            del self._received[sample.origin.worker, sample.index]
        self._here[own] = False
        self._number += 1
        return Chunk(self._number, receiver, tuple(own.tolist()), tuple(returned))

    # -- being handed

    def take(
        self,
        sender: OtherWorker,
        receiver: str,
        number: int,
        received: Sequence[ReceivedSample],
        returned: Sequence[int],
    ) -> None:
        """Take a chunk, all or nothing; the same chunk may be sent again.

        Args:
            sender: The worker that hands the chunk over.
            receiver: The incarnation that it is meant for.
            received: Samples of the sender's data set.
            returned: Indices of this worker's own samples that the sender had.

        Raises:
            NotMemberError: The chunk is meant for another incarnation.
            UnavailableError: The sender is not known yet.
            InvalidRequestError: There is no room, or the sender had no such samples.
        """
        if receiver != self.incarnation:
            raise NotMemberError(f"incarnation {receiver!r} is gone; this is {self.incarnation!r}")
        if not self._is_member(sender):
            raise UnavailableError(f"worker {sender.worker!r}, {sender.incarnation!r}, is not known here yet")
        last, error = self._answered.get(sender, (0, None))
        if number > last:
            error = self._refusal(sender, received, returned)
            self._answered[sender] = (number, error)
            if error is None:
                self._received.update({(sample.origin.worker, sample.index): sample for sample in received})
                for index in returned:
                    self._take_back(index)
        elif number < last:
            error = InvalidRequestError(f"chunk {number}: chunk {last} has been answered since")
        if error is not None:
            raise error

    # -- inside

    def _refusal(
        self, sender: OtherWorker, received: Sequence[ReceivedSample], returned: Sequence[int]
    ) -> InvalidRequestError | None:
        for index in returned:
            if self._away.get(index) != sender:
                return InvalidRequestError(f"sample {index}: {sender.worker!r} does not have it")
        occupied = sum(sample.size for sample in self._received.values())
        coming = sum(sample.size for sample in received)
        if occupied + coming > self._room:
            return InvalidRequestError(
                f"no room for {coming} bytes of samples: {occupied} of {self._room} are taken"
            )
        return None

    def _begin_traversal(self) -> None:
        samples: list[int | ReceivedSample] = [*np.flatnonzero(self._here).tolist(), *self._received.values()]
        self._order = [samples[i] for i in self._random.permutation(len(samples))]

    def _may_use(self, sample: int | ReceivedSample) -> bool:
        if isinstance(sample, ReceivedSample):
            return self._received.get((sample.origin.worker, sample.index)) is sample
        return bool(self._here[sample])

    def _take_back(self, index: int) -> None:
        del self._away[index]
        self._here[index] = True

    def _is_member(self, peer: OtherWorker) -> bool:
        return self._members.get(peer.worker) == peer.incarnation
