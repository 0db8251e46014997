"""A job at a shard process: its shard, whose model it is, who is connected, and what is waited for.

It knows who speaks and in which attempt, but answers nobody: that is for `service`.
"""

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from idl.errors import InvalidRequestError, NotYetError, RewoundError, UnavailableError
from idl.layout import Layout
from idl.synchronisation import Synchronisation
from ps.checkpoint import ShardCheckpoint
from ps.counters import ShardTally
from ps.model import Model
from ps.optimizers import DTYPES
from ps.parameters import Parameters
from ps.state import State
from ps.store import JobStore
from rpc.peer import Peer
from rpc.periodic import Periodic
from rpc.service import Call

T = TypeVar("T")


class TensorSink:
    """Takes parameters, or a slot of the optimiser's state, from the wire straight into a tensor."""

    def __init__(self, layout: Layout) -> None:
        self.tensor = torch.empty(layout.elements, dtype=DTYPES[layout.dtype])  # (elements,)
        self._left = self.tensor.numpy().data.cast("B")

    @property
    def is_full(self) -> bool:
        """Whether all has arrived."""
        return not self._left

    def get_buffer(self) -> memoryview:
        """The rest of the tensor."""
        return self._left

    def advance(self, count: int) -> None:
        """Go on behind what has arrived."""
        self._left = self._left[count:]

    def abort(self) -> None:
        """Nobody uses a tensor that is not full."""


@dataclass(slots=True)
class _Staged:
    """The optimiser's state as one worker has sent it, until the job has its first parameters."""

    steps: int = 0
    slots: dict[str, TensorSink] = field(default_factory=dict)


@dataclass(slots=True)
class ShardJob:
    """One job.

    Attributes:
        name: The job's.
        shard: Its parameters.
        synchronisation: How its workers wait for each other.
        model: As the first worker told it who did.
        checkpoint_every: Versions from one checkpoint to the next.
        store: Where they are; None if there are none.
        attempt: How often the job has been rewound.
        instance: Drawn anew when a process begins to hold the job.
        fenced: Whether the attempt has begun but nobody has said yet from which version it goes on.
        rewound_to: The version that the attempt began with; None in the first, and while it is fenced.
        peers: The connections.
        readers: Those that parameters were sent to since the last step.
        shared: Whether other shards have parts of the gradients that come.
        settled: The latest version for which somebody has said that every shard has all of the gradient.
        asked: The workers that have pushed to every shard what they had for the next version.
        waiting: Pulls, each with its version and the time by which its caller is to ask again; seconds.
        fences: To be answered once what is being written is on the disk, or at a time that each has.
        copying: The last checkpoint; done once it has tensors of its own.
        left_at: Since when there is no connection, or None.
        tally: Counts of what the shard has done.
        sweeping: Around each look at the calls that wait.
    """

    name: str
    shard: Parameters
    synchronisation: Synchronisation
    model: Model | None
    checkpoint_every: int
    store: JobStore | None = None
    attempt: int = 0
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    fenced: bool = False
    rewound_to: int | None = None
    peers: set[Peer] = field(default_factory=set)
    readers: set[Peer] = field(default_factory=set)
    shared: bool = False
    settled: int = -1
    asked: set[str] = field(default_factory=set)
    waiting: list[tuple[Call, int, float]] = field(default_factory=list)
    fences: list[tuple[Call, float]] = field(default_factory=list)
    copying: "Future[None] | None" = None
    left_at: float | None = None
    tally: ShardTally = field(default_factory=ShardTally)
    sweeping: Periodic = field(default_factory=lambda: Periodic("looking at a job's waiting calls"))
    _pushed_in: int = 0  # the attempt in which all of the next gradient came, while another is fenced for
    _awaited: "tuple[tuple[str, int], Future[Any]] | None" = None
    _staged: dict[tuple[str, str], _Staged] = field(default_factory=dict)  # by worker and incarnation

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """The versions that the shard can go back to, ascending."""
        return self.store.versions if self.store else ()

    @property
    def nbytes(self) -> int:
        """Of the parameters, and of state that waits for its parameters."""
        return self.shard.layout.nbytes * (1 + sum(len(staged.slots) for staged in self._staged.values()))

    @property
    def is_restored(self) -> bool:
        """Whether this process has not seen the attempt begin: it has lost what came since the checkpoint."""
        return self.shard.initialised and not self.fenced and self.rewound_to is None

    @property
    def is_copying(self) -> bool:
        """Whether a checkpoint is being made of the parameters as they are: they must stay."""
        return self.copying is not None and not self.copying.done()

    @property
    def is_due(self) -> bool:
        """Whether a step is to be taken.

        Where other shards have parts of the gradient, too, not before it is certain that these have all of
        theirs: a step cannot be taken back, should another attempt begin before they have.
        """
        shard = self.shard
        if self.fenced or not shard.complete or self.is_copying:
            return False
        return not self.shared or self.settled > shard.version or shard.contributors <= self.asked

    def ask(self, worker: str, version: int, *, settled: bool) -> bool:
        """A worker waits for a version, for which it has pushed to every shard; maybe all have.

        Returns:
            Whether the version is still to come: a step may be due now.
        """
        if version <= self.shard.version:
            return False
        self.asked.add(worker)
        if settled:
            self.settled = max(self.settled, version)
        return True

    def stage(self, worker: str, incarnation: str, slot: str, steps: int) -> TensorSink:
        """Where a slot of the optimiser's state goes until its worker's parameters come.

        Raises:
            InvalidRequestError: The optimiser has no such slot.
        """
        self.shard.check_slot(slot)
        staged = self._staged.setdefault((worker, incarnation), _Staged())
        staged.steps = steps
        sink = staged.slots[slot] = TensorSink(self.shard.layout)
        return sink

    def initialise(
        self, worker: str, incarnation: str, parameters: torch.Tensor, version: int, attempt: int
    ) -> None:
        """Set the job's first parameters, and the state that the same worker has sent before.

        Args:
            worker: Whose they are.
            incarnation: Of this worker.
            parameters: (elements,), taken over without a copy.
            version: Of these parameters.
            attempt: That begins with them.

        Raises:
            InvalidRequestError: A part of the state is missing.
        """
        staged = self._staged.get((worker, incarnation), _Staged())
        for slot, sink in staged.slots.items():
            if not sink.is_full:
                raise InvalidRequestError(f"slot {slot!r} has not arrived as a whole; send it again")
        slots = {slot: sink.tensor for slot, sink in staged.slots.items()}
        self.shard.initialise(parameters, version, State(staged.steps, slots))
        self._staged.clear()
        self.attempt, self.fenced, self.rewound_to = attempt, False, version
        self._note({"initialised": version})
        self.save()

    def send_away(self, now: float) -> None:
        """Have those ask again whose answers may not be held back for longer."""
        late = [entry for entry in self.waiting if now >= entry[2]]
        if late:
            self.waiting = [entry for entry in self.waiting if now < entry[2]]
        for call, version, _ in late:
            call.fail(NotYetError(f"version {version} is not there yet"))

    def check_attempt(self, worker: str, attempt: int, instance: str | None = None) -> None:
        """See that a worker relies on what is here.

        Raises:
            RewoundError: It is in another attempt, or relies on what another process held.
        """
        if attempt != self.attempt:
            raise RewoundError(
                f"{worker!r} is in attempt {attempt}, but the parameter server is in {self.attempt}",
                self.attempt,
            )
        if instance not in (None, self.instance):
            raise RewoundError(f"the parameter server was started again since {worker!r} began", self.attempt)

    def fence(self, attempt: int) -> bool:
        """Begin an attempt; False, and no change, if it has begun already.

        Raises:
            RewoundError: It is an earlier one.
        """
        if attempt < self.attempt:
            raise RewoundError(
                f"attempt {attempt}, but the parameter server is in {self.attempt} already", self.attempt
            )
        if attempt == self.attempt:
            return False
        if not self.fenced:
            self._pushed_in = self.attempt
        self.attempt, self.fenced, self.rewound_to = attempt, True, None
        self.settled = -1
        self.asked.clear()
        self._awaited = None  # what an attempt asked for that is given up is not what a later one needs
        if not self.shard.complete:
            self.shard.drop()
        return True

    def rewind(self, version: int) -> None:
        """Go on from a version in the present attempt; the same may be said again.

        Raises:
            RewoundError: The version is not here, or this process knows nothing of the attempt's beginning:
                it was started again meanwhile. Another attempt has to begin.
            InvalidRequestError: There are no parameters, or the attempt went on from another version.
            UnavailableError: The disk is waited for; to be said again.
        """
        if not self.shard.initialised:
            raise InvalidRequestError(f"rewind to version {version}, but there are no parameters yet")
        if self.fenced:
            if version != self.shard.version:
                self._go_back(version)
            self.shard.drop()
            self.fenced, self.rewound_to = False, version
            self._note({"rewound": version})
        elif self.rewound_to is None:
            raise RewoundError(
                f"the parameter server was started again since attempt {self.attempt} began", self.attempt
            )
        elif version < self.rewound_to:  # a worker that comes late begins with a later iteration
            raise InvalidRequestError(
                f"rewind to version {version}, but attempt {self.attempt} went on from {self.rewound_to}"
            )

    def forget(self, version: int) -> None:
        """Wait for parameters to be set again in the present attempt; the same may be said again.

        Raises:
            InvalidRequestError: There are parameters of another version: something was trained.
            UnavailableError: The disk is waited for; to be said again.
        """
        if not self.fenced:
            return
        if self.shard.initialised and self.shard.version != version:
            raise InvalidRequestError(
                f"anew from version {version}, but the parameters are of version {self.shard.version}"
            )
        if self.store is not None:
            self._await(("forget", version), self.store.forget)
        self.shard.forget()
        self.fenced = False

    def stepped(self) -> None:
        """Write down the step that was just taken, and where the job is if it is time for that."""
        self.asked.clear()
        if self.store is None:
            return
        used = sorted(self.shard.used, key=lambda part: part.start)
        elements = self.shard.layout.elements
        record: dict[str, Any] = {
            "iteration": self.shard.version - 1,
            "slices": [[part.start, part.count, part.worker] for part in used if part.done == elements],
        }
        if broken := [part for part in used if part.done < elements]:
            # Of these, the elements up to the last number came; slices within them brought the others.
            record["broken"] = [[part.start, part.count, part.worker, part.done] for part in broken]
        self._note({"attempt": self._pushed_in, **record} if self.fenced else record)
        if self.shard.version % self.checkpoint_every == 0:
            self.save()

    def save(self) -> None:
        """Have a checkpoint written, unless there is one of this version."""
        if self.store and self.shard.initialised:
            snapshot = self.shard.snapshot()
            copied = self.store.save(
                ShardCheckpoint(self.name, self.attempt, self.synchronisation, self.model, snapshot)
            )
            self.copying = copied or self.copying

    def check_same(self, worker: str, model: Model | None, layout: Layout, sync: Synchronisation) -> None:
        """See that another worker trains the same thing in the same way.

        Raises:
            InvalidRequestError: It does not; the error has both sides.
        """
        if self.model and model and (difference := self.model.difference(model)):
            raise InvalidRequestError(f"{difference}: is it the same model?")
        if _shape(self.shard.layout) != _shape(layout):
            raise InvalidRequestError(
                f"the job holds {_shape(self.shard.layout)}, "
                f"but {worker!r} has {_shape(layout)}: is it the same model and optimiser?"
            )
        if self.synchronisation != sync:
            raise InvalidRequestError(
                f"the job runs with {self.synchronisation}, but {worker!r} wants {sync}: "
                f"it must be what the manager answered to join"
            )

    def _go_back(self, version: int) -> None:
        if self.store is None or version not in self.store.versions:
            there = ", ".join(map(str, self.checkpoints))
            raise RewoundError(
                f"rewind to version {version}: there is {self.shard.version}, "
                f"and {f'checkpoints of {there}' if there else 'no checkpoint'}",
                self.attempt,
            )
        store = self.store
        checkpoint = self._await(("go back", version), lambda: store.go_back(version))
        self.shard.restore(checkpoint.snapshot)
        self.readers.clear()

    def _await(self, what: tuple[str, int], begin: "Callable[[], Future[T]]") -> T:
        """What another thread's work comes to; until then, the caller is told to say the same again."""
        if self._awaited is None or self._awaited[0] != what:
            self._awaited = what, begin()
        future = self._awaited[1]
        if not future.done():
            raise UnavailableError(f"{self.name}: the shard's disk has yet to {' '.join(map(str, what))}")
        self._awaited = None
        return future.result()

    def _note(self, record: Mapping[str, Any]) -> None:
        """Write down what happened, in the ledger."""
        if self.store:
            self.store.note({"attempt": self.attempt, **record})


def _shape(layout: Layout) -> str:
    sizes = ", ".join(f"{group.elements}{' statistics' * group.statistics}" for group in layout.groups)
    return f"{layout.optimizer} on groups of {sizes} elements of {layout.dtype}"
