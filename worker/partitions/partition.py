"""A worker's part of the data: its own samples, less those handed over, and those that it was handed.

It says which samples are used next, and keeps the books of who has which: a sample is used by its origin, the
worker whose data set has it, or by one other. The origin decides. A sample that is on its way is nobody's to
use until its receiver is known to have it, or to be gone. No wire, no thread, no clock; what a sample is, is
its holder's business. `idl/data_partition.thrift` has the rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError, UnavailableError
from idl.traversal import Traversal


@dataclass(frozen=True, slots=True)
class Peer:
    """Another worker, in one incarnation."""

    worker: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Guest:
    """A sample that another worker has handed over.

    Attributes:
        origin: Whose it is.
        index: In the origin's data set.
        sample: Itself.
        size: Bytes of memory.
    """

    origin: Peer
    index: int
    sample: Any
    size: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Samples that are handed over together, entirely or not at all.

    Attributes:
        number: Larger than that of all chunks before.
        receiver: Who is to have them.
        own: Indices of the sender's own.
        returned: The receiver's own, that the sender has.
    """

    number: int
    receiver: Peer
    own: tuple[int, ...]
    returned: tuple[Guest, ...]

    def __len__(self) -> int:
        return len(self.own) + len(self.returned)


class Outcome(Enum):
    """What became of a chunk."""

    TAKEN = auto()
    REFUSED = auto()  # the receiver has none of it, for certain
    GONE = auto()  # the receiver is no member any more, or another incarnation


class Partition:
    """The samples of one worker. Not to be used by several threads at once.

    Args:
        samples: In its own data set; at least 1.
        incarnation: As which it takes part, until it comes back as another.
        seed: Of the order in which samples are used, and the choice of those that go.
        room: Bytes of other workers' samples that are taken.

    Attributes:
        incarnation: The present one.
        generation: Of the members that were noted last; -1 before.
    """

    def __init__(self, samples: int, incarnation: str, seed: int | Sequence[int], room: int) -> None:
        self.incarnation = incarnation
        self.generation = -1
        self._random = np.random.default_rng(seed)
        self._room = room
        self._members: dict[str, str] = {}  # name to incarnation
        self._here = np.ones(samples, dtype=bool)  # which of its own it may use
        self._away: dict[int, Peer] = {}  # who has the others, as far as they are not on their way
        self._guests: dict[tuple[str, int], Guest] = {}  # by origin's name and index
        self._moves: dict[str, int] = {}  # to whom how many are still to go
        self._planned = False  # whether there were any in this generation
        self._chunk: Chunk | None = None  # on its way
        self._number = 0  # of the last chunk
        self._answered: dict[Peer, tuple[int, EvenpaceError | None]] = {}  # each's last chunk, and how
        self._order: list[int | Guest] = []  # what is left of this traversal, last first
        self._drawn = 0  # in this generation
        self._iterations: tuple[int, int] | None = None  # the first and the last in which it was

    def __len__(self) -> int:
        """How many samples it may use."""
        return int(self._here.sum()) + len(self._guests)

    # -- using them

    def draw(self, count: int, iteration: int) -> list[int | Guest]:
        """The next samples, for an iteration of the job; of its own, their indices.

        Each traversal goes through all samples that are there when it begins, in an order of its own.
        """
        drawn: list[int | Guest] = []
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
        """What to report."""
        moved = self._planned and not self._moves and self._chunk is None
        iterations = self._iterations[1] - self._iterations[0] + 1 if self._iterations else 0
        return Traversal(self.generation, len(self), self._drawn, iterations, moved)

    # -- membership

    def note(self, generation: int, members: Mapping[str, str]) -> None:
        """Begin anew, with these members: name to incarnation.

        What those had who are gone is its own again; what it has of somebody who has come back anew is not.
        """
        self.generation = generation
        self._members = dict(members)
        if self._chunk is not None and not self._is_member(self._chunk.receiver):
            self.settle(self._chunk, Outcome.GONE)
        for index, holder in list(self._away.items()):
            if not self._is_member(holder):
                self._take_back(index)
        for key, guest in list(self._guests.items()):
            if self._members.get(guest.origin.worker, guest.origin.incarnation) != guest.origin.incarnation:
                del self._guests[key]
        self._answered = {peer: last for peer, last in self._answered.items() if self._is_member(peer)}
        self._moves.clear()
        self._planned = False
        self._order.clear()
        self._drawn, self._iterations = 0, None

    def evict(self, incarnation: str) -> None:
        """It was taken out, and will be another incarnation: what it was handed is not its to use."""
        if self._chunk is not None:
            self.settle(self._chunk, Outcome.TAKEN)  # for all that is known
        self._guests.clear()
        self._members.clear()
        self._moves.clear()
        self._answered.clear()
        self.generation = -1
        self.incarnation = incarnation

    def come_back(self) -> None:
        """As this incarnation it has all of its own, and nothing else: nobody holds them any more."""
        self._away.clear()
        self._here[:] = True

    # -- handing over

    def plan(self, moves: Mapping[str, int]) -> None:
        """So many samples are to go to these members; the same may be said again in the same generation."""
        if moves and not self._planned:
            self._moves = dict(moves)
            self._planned = True

    def next_chunk(self, limit: int) -> Chunk | None:
        """What is on its way, or else up to `limit` samples that go next, and are not used from now on.

        The receiver's own go first. Others are chosen at random among its own, of which at least one stays.

        Returns:
            None if there is nothing to send.
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

    def settle(self, chunk: Chunk, outcome: Outcome) -> None:
        """Note what became of a chunk, unless that is known."""
        if chunk is not self._chunk:
            return
        self._chunk = None
        if outcome is Outcome.TAKEN:
            self._away.update(dict.fromkeys(chunk.own, chunk.receiver))
            return
        self._here[list(chunk.own)] = True
        self._moves.pop(chunk.receiver.worker, None)
        if outcome is Outcome.REFUSED:
            # Of a receiver that is gone, it is not known whether it has them: they are its own.
            self._guests.update({(guest.origin.worker, guest.index): guest for guest in chunk.returned})

    def _choose(self, worker: str, count: int) -> Chunk | None:
        incarnation = self._members.get(worker)
        if incarnation is None:
            return None
        receiver = Peer(worker, incarnation)
        returned = [guest for guest in self._guests.values() if guest.origin == receiver][:count]
        own = self._random.permutation(np.flatnonzero(self._here))[1:][: count - len(returned)]
        if not returned and not own.size:
            return None
        for guest in returned:
            del self._guests[guest.origin.worker, guest.index]
        self._here[own] = False
        self._number += 1
        return Chunk(self._number, receiver, tuple(own.tolist()), tuple(returned))

    # -- being handed

    def take(
        self, sender: Peer, receiver: str, number: int, guests: Sequence[Guest], returned: Sequence[int]
    ) -> None:
        """Take a chunk, all or nothing; the same may come again.

        Args:
            sender: Whose chunk it is.
            receiver: The incarnation that is meant.
            number: The chunk's.
            guests: Samples of the sender's own.
            returned: Indices of its own that the sender had.

        Raises:
            NotMemberError: Another incarnation was meant.
            UnavailableError: The sender is not known yet.
            InvalidRequestError: There is no room, or the sender had no such samples.
        """
        if receiver != self.incarnation:
            raise NotMemberError(f"incarnation {receiver!r} is gone; this is {self.incarnation!r}")
        if not self._is_member(sender):
            raise UnavailableError(f"worker {sender.worker!r}, {sender.incarnation!r}, is not known here yet")
        last, error = self._answered.get(sender, (0, None))
        if number > last:
            error = self._why_not(sender, guests, returned)
            self._answered[sender] = (number, error)
            if error is None:
                self._guests.update({(guest.origin.worker, guest.index): guest for guest in guests})
                for index in returned:
                    self._take_back(index)
        elif number < last:
            error = InvalidRequestError(f"chunk {number}: chunk {last} has been answered since")
        if error is not None:
            raise error

    # -- inside

    def _why_not(
        self, sender: Peer, guests: Sequence[Guest], returned: Sequence[int]
    ) -> InvalidRequestError | None:
        for index in returned:
            if self._away.get(index) != sender:
                return InvalidRequestError(f"sample {index}: {sender.worker!r} does not have it")
        occupied = sum(guest.size for guest in self._guests.values())
        coming = sum(guest.size for guest in guests)
        if occupied + coming > self._room:
            return InvalidRequestError(
                f"no room for {coming} bytes of samples: {occupied} of {self._room} are taken"
            )
        return None

    def _begin_traversal(self) -> None:
        samples: list[int | Guest] = [*np.flatnonzero(self._here).tolist(), *self._guests.values()]
        self._order = [samples[i] for i in self._random.permutation(len(samples))]

    def _may_use(self, sample: int | Guest) -> bool:
        if isinstance(sample, Guest):
            return self._guests.get((sample.origin.worker, sample.index)) is sample
        return bool(self._here[sample])

    def _take_back(self, index: int) -> None:
        del self._away[index]
        self._here[index] = True

    def _is_member(self, peer: Peer) -> bool:
        return self._members.get(peer.worker) == peer.incarnation
