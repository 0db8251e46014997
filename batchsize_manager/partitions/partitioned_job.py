"""A job with local partitions as a state machine: workers' traversals, and the samples to move.

LB-BSP, section 3.5: once the traversals of one part exceed another's by more than a bound, samples move from
slower to faster workers; then all count from 0 again. Events come in through `join`, `report`, `leave` and
`tick`, each with its time. No sockets, no threads, no clock, and no samples: only their numbers.
"""

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from idl.errors import InvalidRequestError, NotMemberError, UnavailableError
from idl.settings import Checked, Setting
from idl.traversal import Traversal

_NEW = -1  # the generation of a member that has not reported yet, and holds no other's samples


@dataclass(frozen=True)
class PartitionsConfig(Checked):
    """Options of the balance between parts (ValueError: a number is out of its range)."""

    workers: Annotated[int, Setting("Number of workers with which a job starts.", least=1)] = 1
    max_gap: Annotated[
        float,
        Setting("Traversals by which a part may be ahead of another before samples move.", above=0),
    ] = 2.0
    silence: Annotated[
        float,
        Setting("Seconds without a report after which a worker is taken out.", above=0, below=math.inf),
    ] = 30.0
    # Seconds after which moves that are not done are given up.
    move_timeout: Annotated[float, Setting(above=0, below=math.inf)] = 300.0


@dataclass(frozen=True, slots=True)
class Part:
    """A worker's part of the data: its size, and how many samples were used since the last reset."""

    samples: int  # samples in the part
    drawn: float = 0  # samples used, counted each time; not whole where they are estimated
    iterations: int = 0  # iterations in which they were used

    @property
    def batch_size(self) -> float:
        """The mean number of samples used in an iteration."""
        return self.drawn / self.iterations if self.iterations else 0.0

    @property
    def pace(self) -> float:
        """The mean number of traversals of the part in an iteration."""
        return self.batch_size / self.samples


@dataclass(frozen=True, slots=True)
class Move:
    """Samples that one worker is to send to another."""

    sender: str
    receiver: str
    samples: int


class Reports:
    """A worker's reports of its part since the last reset.

    Workers report at different times, while the batch may grow or shrink: to be compared, they are looked at
    in the same iteration. What a worker had used there lies between its reports before and after.

    Args:
        samples: Samples in the part.
    """

    def __init__(self, samples: int) -> None:
        self.last = Part(samples)  # the part as it was reported last
        self._counts: list[tuple[int, float]] = [(0, 0)]  # iterations, samples used; ascending

    def add(self, part: Part) -> None:
        """Add a report; one of fewer iterations than an earlier one is late, and is dropped."""
        if part.iterations < self.last.iterations:
            return
        if part.iterations == self._counts[-1][0]:
            self._counts.pop()
        self._counts.append((part.iterations, part.drawn))
        self.last = part

    def at(self, iterations: int) -> tuple[float, float, float]:
        """Return the fewest, the likely and the most samples used in so many iterations.

        Args:
            iterations: At most those of the last report, and not fewer than in an earlier call.
        """
        index = bisect.bisect(self._counts, iterations, key=lambda count: count[0]) - 1
        del self._counts[:index]  # the workers will not be compared at an earlier iteration
        known, least = self._counts[0]
        if known == iterations:
            return least, least, least
        later, most = self._counts[1]
        return least, least + (most - least) * (iterations - known) / (later - known), most


def plan_moves(parts: Mapping[str, Part]) -> list[Move]:
    """Return the moves after which all workers would traverse their parts equally often.

    The best size of a part is in proportion to its worker's batch size. Samples above that go from the
    slowest worker to the fastest that lacks some, and so on. A worker keeps at least one sample.
    """
    samples = sum(part.samples for part in parts.values())
    batch = sum(part.batch_size for part in parts.values())
    if not batch:
        return []
    best = {worker: samples * part.batch_size / batch for worker, part in parts.items()}
    surplus = {worker: part.samples - max(1, math.ceil(best[worker])) for worker, part in parts.items()}
    lack = {worker: math.floor(best[worker]) - part.samples for worker, part in parts.items()}
    slowest_first = sorted(parts, key=lambda worker: parts[worker].pace)
    moves = []
    receivers = [worker for worker in reversed(slowest_first) if lack[worker] > 0]
    for sender in slowest_first:
        while surplus[sender] > 0 and receivers:
            receiver = receivers[0]
            count = min(surplus[sender], lack[receiver])
            moves.append(Move(sender, receiver, count))
            surplus[sender] -= count
            lack[receiver] -= count
            if not lack[receiver]:
                receivers.pop(0)
    return moves


@dataclass(slots=True)
class _Member:
    incarnation: str
    address: str
    reports: Reports
    generation: int  # the last that it has noted
    joined: int  # the generation that began when it joined
    heard_at: float


class PartitionedJob:
    """The parts of one job. Times are in seconds on any one monotonic clock.

    Args:
        config: Options of the balance between parts.

    Attributes:
        gap: Traversals by which the fastest worker was ahead of the slowest at least, in the last iteration
            that all had reported.
    """

    def __init__(self, config: PartitionsConfig) -> None:
        # Number of resets so far; a reset follows moved samples and changes of the members.
        self.generation = 0
        self.dataset_size = 0  # samples of all workers that the job started with; 0 before
        self.moves: list[Move] = []  # moves that are under way
        self.gap = 0.0
        # Events since they were last taken, in words, each with the worker that it is about.
        self.events: list[tuple[str, str | None]] = []
        self._config = config
        self._members: dict[str, _Member] = {}
        self._moving_since = 0.0

    # -- events

    def join(self, worker: str, incarnation: str, address: str, samples: int, now: float) -> None:
        """Add a worker with `samples` samples of its own; the same incarnation may repeat this.

        Raises:
            UnavailableError: The name is taken, as it may be for a while after its last process died.
        """
        member = self._members.get(worker)
        if member is not None and member.incarnation != incarnation:
            raise UnavailableError(
                f"worker {worker!r} has a part already, as {member.incarnation}: give each worker "
                f"its own name; whether that one is dead is known after {self._config.silence:g} s"
            )
        if member is not None:
            member.heard_at = now
            return
        self._reset()
        self._members[worker] = _Member(incarnation, address, Reports(samples), _NEW, self.generation, now)
        self._log_event(f"{worker} joined, with {samples} samples", worker)
        if not self.dataset_size and len(self._members) >= self._config.workers:
            self.dataset_size = sum(m.reports.last.samples for m in self._members.values())

    def report(self, worker: str, incarnation: str, progress: Traversal, now: float) -> None:
        """Handle a worker's report of its progress, and let samples move if a worker is too far ahead.

        Raises:
            NotMemberError: The worker is no member.
            InvalidRequestError: It reports a generation that has not begun.
        """
        member = self._member(worker, incarnation)
        if progress.generation > self.generation:
            raise InvalidRequestError(
                f"generation {progress.generation}: must be from 0 to {self.generation}"
            )
        member.heard_at = now
        member.generation = max(member.generation, progress.generation)
        if progress.generation != self.generation:
            return
        member.reports.add(Part(progress.samples, progress.drawn, progress.iterations))
        if self.moves:
            if progress.moved:
                self.moves = [move for move in self.moves if move.sender != worker]
                if not self.moves:
                    self._reset()
                    self._log_event("samples have moved")
            return
        self._balance(now)

    def leave(self, worker: str, incarnation: str) -> None:
        """Remove a worker (NotMemberError: the worker is no member)."""
        self._member(worker, incarnation)
        self._remove(worker, "left")

    def tick(self, now: float) -> None:
        """Take out silent workers, and give up moves that take too long."""
        for worker, member in list(self._members.items()):
            if now - member.heard_at >= self._config.silence:
                self._remove(worker, f"was silent for {self._config.silence:g} s")
        if self.moves and now - self._moving_since >= self._config.move_timeout:
            self._log_event(f"gave up the rest of {_in_words(self.moves)}")
            self._reset()

    # -- what follows from them

    @property
    def size(self) -> int:
        """The number of members."""
        return len(self._members)

    @property
    def members(self) -> dict[str, tuple[str, str]]:
        """Each member's incarnation and address."""
        return {name: (member.incarnation, member.address) for name, member in self._members.items()}

    @property
    def parts(self) -> dict[str, Part]:
        """Each member's part as it was reported last; from any thread."""
        return {name: member.reports.last for name, member in list(self._members.items())}

    def is_ready(self, worker: str) -> bool:
        """Return whether the job has started and no other holds samples of a worker's earlier incarnation."""
        joined = self._members[worker].joined
        others = (member for name, member in self._members.items() if name != worker)
        return bool(self.dataset_size) and all(
            other.generation >= joined or other.generation == _NEW for other in others
        )

    def moves_of(self, worker: str) -> list[Move]:
        """Return the moves that a member has still to make."""
        return [move for move in self.moves if move.sender == worker]

    # -- inside

    def _balance(self, now: float) -> None:
        """Let samples move if a worker is too far ahead, once all counts are of this generation."""
        if not self.dataset_size or any(m.generation != self.generation for m in self._members.values()):
            return
        iterations = min(part.iterations for part in self.parts.values())
        parts, least, most = {}, [], []
        for name, member in self._members.items():
            samples = member.reports.last.samples
            fewest, likely, highest = member.reports.at(iterations)
            parts[name] = Part(samples, likely, iterations)
            least.append(fewest / samples)
            most.append(highest / samples)
        self.gap = max(0.0, max(least) - min(most))
        if self.gap <= self._config.max_gap:
            return
        self.moves = plan_moves(parts)
        self._moving_since = now
        if self.moves:
            self._log_event(f"{self.gap:.1f} traversals apart: {_in_words(self.moves)}")
        else:
            self._reset()

    def _remove(self, worker: str, why: str) -> None:
        del self._members[worker]
        self._log_event(f"{worker} {why}", worker)
        self._reset()

    def _reset(self) -> None:
        """Begin a new generation: each worker counts from 0 once it has noted it."""
        self.generation += 1
        self.moves = []
        self.gap = 0.0
        for member in self._members.values():
            member.reports = Reports(member.reports.last.samples)

    def _member(self, worker: str, incarnation: str) -> _Member:
        member = self._members.get(worker)
        if member is None or member.incarnation != incarnation:
            raise NotMemberError(
                f"worker {worker!r}, incarnation {incarnation!r}, has no part: it never joined, left, or was "
                f"silent for too long"
            )
        return member

    def _log_event(self, event: str, worker: str | None = None) -> None:
        self.events.append((event, worker))


def _in_words(moves: list[Move]) -> str:
    return ", ".join(f"{move.samples} samples from {move.sender} to {move.receiver}" for move in moves)
