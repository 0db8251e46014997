"""A job at a shard process: its shard, its model, its connections, its attempt, and the calls that wait.

This module knows workers and attempts, but answers no calls: that is for `service`.
"""

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from idl.errors import EvenpaceError, InvalidRequestError, NotYetError, RewoundError, UnavailableError
from idl.layout import UNTRAINED, Layout, Part
from idl.synchronisation import Synchronisation
from ps.checkpoint import ShardCheckpoint, UnreadableError
from ps.checkpoint_store import JobStore
from ps.counters import ShardTally
from ps.model_tensors import ModelTensors
from ps.optimizer_state import State
from ps.optimizers import DTYPES
from ps.parameters import Parameters
from rpc.periodic import Periodic
from rpc.service import Call, Connection

T = TypeVar("T")


class TensorSink:
    """A sink that writes parameters, or what comes beside them, from the wire into a tensor."""

    def __init__(self, elements: int, dtype: torch.dtype) -> None:
        self.tensor = torch.empty(elements, dtype=dtype)  # (elements,)
        self._left = self.tensor.numpy().data.cast("B")

    @property
    def is_full(self) -> bool:
        """Return whether all bytes have arrived."""
        return not self._left

    def get_buffer(self) -> memoryview:
        """Return the rest of the tensor."""
        return self._left

    def advance(self, count: int) -> None:
        """Move on by `count` bytes that have arrived."""
        self._left = self._left[count:]

    def abort(self) -> None:
        """Do nothing: a tensor that is not full is not used."""


@dataclass(slots=True)
class _Staged:
    """The optimiser's state that one worker has sent, until the job has its first parameters."""

    steps: int = 0
    slots: dict[str, TensorSink] = field(default_factory=dict)


@dataclass(slots=True)
class ShardJob:
    """One job at a shard process.

    Attributes:
        fences: Fences, each with the time, in seconds, at which it is answered although a checkpoint is still
            being written.
    """

    name: str  # the job's name, JOB/RUN
    shard: Parameters  # its parameters
    synchronisation: Synchronisation  # how its workers wait for each other
    model: ModelTensors | None  # the model's tensors, as the first worker that declared them did
    checkpoint_every: int  # versions from one checkpoint to the next
    part: Part | None = None  # which part of all parameters they are, as the first worker that named one did
    store: JobStore | None = None  # its checkpoints and ledger; None without them
    attempt: int = 0  # how often the job has been rewound
    # A random id, drawn each time that a process begins to hold the job.
    instance: str = field(default_factory=lambda: uuid.uuid4().hex)
    # Whether somebody has asked for the next version's parameters as they are stepped.
    is_pulled_early: bool = False
    is_part_due: bool = False  # whether a look at what of the next step can be taken is due
    part_seconds: float = 0.0  # seconds that what was taken of the next step has taken
    # Whether the attempt has begun, but no worker has said yet from which version it goes on.
    fenced: bool = False
    begun_by: str | None = None  # id of the manager's process that has begun the attempt; None if not known
    # The version that the attempt began with; None in the first, and while it is fenced.
    rewound_to: int | None = None
    peers: set[Connection] = field(default_factory=set)  # the job's connections
    # The connections that parameters were sent to since the last step.
    readers: set[Connection] = field(default_factory=set)
    shared: bool = False  # whether other shards have parts of the gradients that are pushed
    # The latest version for which a worker has said that every shard has all of the gradient.
    settled: int = -1
    # By version of a checkpoint, `Parameters.place`, as far as known.
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    # The workers that have pushed their gradients for the next version to every shard.
    pushed_to_all: set[str] = field(default_factory=set)
    # Pulls, each with its version and the time, in seconds, after which its caller asks again.
    waiting: list[tuple[Call, int, float]] = field(default_factory=list)
    # Pulls whose answers have begun, each with the bytes that were sent.
    streams: dict[Call, int] = field(default_factory=dict)
    fences: list[tuple[Call, float]] = field(default_factory=list)
    # The last checkpoint's copy; done once its tensors have been copied.
    copying: "Future[None] | None" = None
    left_at: float | None = None  # seconds on the monotonic clock since which there is no connection, or None
    tally: ShardTally = field(default_factory=ShardTally)  # counters of the shard
    # What the model has beside what is trained, (bytes,); None where no worker has set it.
    untrained: torch.Tensor | None = None
    # Logs errors of the periodic look at the calls that wait.
    sweeping: Periodic = field(default_factory=lambda: Periodic("looking at a job's waiting calls"))
    _pushed_in: int = 0  # the attempt that pushed the next gradient completely, while a later one is fenced
    _awaited: "tuple[tuple[str, int], Future[Any]] | None" = None
    _staged: dict[tuple[str, str], _Staged] = field(default_factory=dict)  # by worker and incarnation

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Return the versions that the shard has checkpoints of, ascending."""
        return self.store.versions if self.store else ()

    @property
    def nbytes(self) -> int:
        """Return the bytes of the job, of what is not trained, and of what waits for the first parameters."""
        staged = (sink.tensor for one in self._staged.values() for sink in one.slots.values())
        beside = 0 if self.untrained is None else self.untrained.nbytes
        return self.shard.nbytes + beside + sum(tensor.nbytes for tensor in staged)

    @property
    def is_restored(self) -> bool:
        """Return whether the attempt began before this process, which lost the steps after the checkpoint."""
        return self.shard.initialised and not self.fenced and self.rewound_to is None

    @property
    def is_read(self) -> bool:
        """Return whether parameters are still being sent to somebody."""
        return any(peer.is_sending() for peer in self.readers)

    @property
    def is_copying(self) -> bool:
        """Return whether a checkpoint is copying the parameters, which must not change meanwhile."""
        return self.copying is not None and not self.copying.done()

    @property
    def is_due(self) -> bool:
        """Return whether a step is to be taken now.

        Where other shards have parts of the gradient, the step waits until all of these have received theirs:
        it cannot be undone, should another attempt begin before they have.
        """
        shard = self.shard
        if self.fenced or not shard.is_complete or self.is_copying:
            return False
        return not self.shared or self.settled > shard.version or shard.contributors <= self.pushed_to_all

    def note_pull(self, worker: str, version: int, *, settled: bool) -> bool:
        """Note that a worker waits for a version, for which it has pushed its gradient to every shard.

        Args:
            settled: Whether it knows that all workers have pushed theirs to every shard.

        Returns:
            Whether the version has not been reached, so that a step may be due now.
        """
        if version <= self.shard.version:
            return False
        self.pushed_to_all.add(worker)
        if settled:
            self.settled = max(self.settled, version)
        return True

    def stage(self, worker: str, incarnation: str, slot: str, steps: int, length: int) -> TensorSink:
        """Return the sink for what a worker sends beside the parameters, which is held until these arrive.

        Args:
            slot: The slot of the optimiser's state, or `UNTRAINED`.
            steps: The optimiser's steps so far.
            length: The bytes that are sent.

        Raises:
            InvalidRequestError: The optimiser has no such slot.
        """
        staged = self._staged.setdefault((worker, incarnation), _Staged())
        if slot == UNTRAINED:
            sink = TensorSink(length, torch.uint8)
        else:
            self.shard.check_slot(slot)
            staged.steps = steps
            sink = TensorSink(self.shard.layout.elements, DTYPES[self.shard.layout.dtype])
        staged.slots[slot] = sink
        return sink

    def initialise(
        self, worker: str, incarnation: str, parameters: torch.Tensor, version: int, attempt: int
    ) -> None:
        """Set the job's first parameters, and the optimiser's state that the same worker has sent before.

        Args:
            parameters: (elements,), not copied.

        Raises:
            InvalidRequestError: A part of the state is missing.
        """
        staged = self._staged.get((worker, incarnation), _Staged())
        for slot, sink in staged.slots.items():
            if not sink.is_full:
                raise InvalidRequestError(f"slot {slot!r} has not arrived as a whole; send it again")
        slots = {slot: sink.tensor for slot, sink in staged.slots.items()}
        self.untrained = slots.pop(UNTRAINED, None)
        self.shard.initialise(parameters, version, State(staged.steps, slots))
        self._staged.clear()
        self.attempt, self.fenced, self.rewound_to = attempt, False, version
        self._append_to_ledger({"initialised": version})
        self.save()

    def expire_pulls(self, now: float) -> None:
        """Answer the pulls whose time to wait is over, so that their callers ask again.

        Args:
            now: Seconds, from `time.monotonic`.
        """
        expired = [entry for entry in self.waiting if now >= entry[2]]
        if expired:
            self.waiting = [entry for entry in self.waiting if now < entry[2]]
        for call, version, _ in expired:
            lack = f"attempt {self.attempt} is to begin" if self.fenced else self.shard.lack
            call.fail(NotYetError(f"version {version} is not there yet: {lack}"))

    def end_pulls(self, error: EvenpaceError) -> None:
        """Fail the pulls that wait, and break off those whose answers have begun."""
        waiting, self.waiting = self.waiting, []
        for call, _, _ in waiting:
            call.fail(error)
        streams, self.streams = self.streams, {}
        for call in streams:
            call.peer.abort()

    def check_attempt(self, worker: str, attempt: int, instance: str | None = None) -> None:
        """Check that a worker is in the job's attempt and relies on this process.

        Raises:
            RewoundError: It is in another attempt, or relies on the state of another process.
        """
        if attempt != self.attempt:
            raise RewoundError(
                f"{worker!r} is in attempt {attempt}, but the parameter server is in {self.attempt}",
                self.attempt,
            )
        if instance not in (None, self.instance):
            raise RewoundError(f"the parameter server was started again since {worker!r} began", self.attempt)

    def fence(self, attempt: int, manager: str | None = None) -> bool:
        """Begin an attempt; return False, and change nothing, if it has begun already.

        Args:
            manager: Id of the manager's process that has begun it; None if not known.

        Raises:
            RewoundError: A later attempt has begun, or another process's of this number.
        """
        if attempt < self.attempt:
            raise RewoundError(
                f"attempt {attempt}, but the parameter server is in {self.attempt} already", self.attempt
            )
        if attempt == self.attempt:
            if manager not in (None, self.begun_by) and self.begun_by is not None:
                raise RewoundError(
                    f"attempt {attempt} has begun for an earlier process of the manager, which has lost it",
                    attempt + 1,
                )
            self.begun_by = self.begun_by or manager
            return False
        self.begun_by = manager
        if not self.fenced:
            self._pushed_in = self.attempt
        self.attempt, self.fenced, self.rewound_to = attempt, True, None
        self.settled, self.is_pulled_early = -1, False
        self.pushed_to_all.clear()
        self._awaited = None  # an attempt that is over began it; a later one may need another version
        if not self.shard.is_complete:
            self.shard.drop()
        return True

    def rewind(self, version: int) -> None:
        """Go on from a version in the present attempt; may be called again with the same version.

        Raises:
            RewoundError: There is no such version, or this process was started after the attempt began.
                Another attempt has to begin.
            InvalidRequestError: There are no parameters, or the attempt went on from another version.
            UnavailableError: Checkpoints are being read or removed; the call is to be repeated.
        """
        if not self.shard.initialised:
            raise InvalidRequestError(f"rewind to version {version}, but there are no parameters yet")
        if self.fenced:
            if version != self.shard.version:
                self._go_back(version)
            elif (store := self.store) is not None and store.has_after(version):
                # Of steps that count no more: a process that read one of them would go on from it.
                self._remove_after(store, version)
                self.places = {its: place for its, place in self.places.items() if its <= version}
            self.shard.drop()
            self.fenced, self.rewound_to = False, version
            self._append_to_ledger({"rewound": version})
        elif self.rewound_to is None:
            raise RewoundError(
                f"the parameter server was started again since attempt {self.attempt} began", self.attempt
            )
        elif version < self.rewound_to:  # a worker that joins later begins with a later iteration
            raise InvalidRequestError(
                f"rewind to version {version}, but attempt {self.attempt} went on from {self.rewound_to}"
            )

    def reset(self, version: int) -> None:
        """Drop the parameters, which are to be set again in the present attempt; may be called again.

        Raises:
            InvalidRequestError: The parameters are of another version, so that some training would be lost.
            UnavailableError: The checkpoints are being removed; the call is to be repeated.
        """
        if not self.fenced:
            return
        if self.shard.initialised and self.shard.version != version:
            raise InvalidRequestError(
                f"reset at version {version}, but the parameters are of version {self.shard.version}"
            )
        if self.store is not None:
            self._remove_after(self.store, -1)
        self.shard.reset()
        self.places.clear()
        self.fenced = False

    def record_step(self) -> None:
        """Record the step that was just taken in the ledger, and save a checkpoint if one is due."""
        self.pushed_to_all.clear()
        if self.store is None:
            return
        used = sorted(self.shard.used, key=lambda part: part.start)
        elements = self.shard.layout.elements
        record: dict[str, Any] = {
            "iteration": self.shard.version - 1,
            "slices": [[part.start, part.count, part.worker] for part in used if part.done == elements],
        }
        if broken := [part for part in used if part.done < elements]:
            # The last number is that of the elements that arrived; slices within these supplied the others.
            record["broken"] = [[part.start, part.count, part.worker, part.done] for part in broken]
        self._append_to_ledger({"attempt": self._pushed_in, **record} if self.fenced else record)
        if self.shard.version % self.checkpoint_every == 0:
            self.save()

    def check_part(self, worker: str, part: Part | None) -> None:
        """Check that the shard holds the part that a worker takes it for, as far as both are known.

        Raises:
            InvalidRequestError: It holds another one; the error names both.
        """
        if self.part and part and self.part != part:
            raise InvalidRequestError(
                f"this shard holds {self.part}, but {worker!r} takes it for {part}: name each shard once, in "
                "the same order at every worker, and start it again with the folder and address that it had"
            )

    def reachable_places(self) -> dict[int, tuple[int, int]]:
        """Return, by version that it can go on from, where the batch begins, as far as known."""
        shard = self.shard
        places = {version: self.places.get(version) for version in self.checkpoints}
        places[shard.version] = shard.place
        if shard.is_complete:
            places[shard.version + 1] = shard.next_place
        return {version: place for version, place in places.items() if place is not None}

    def save(self) -> None:
        """Save a checkpoint in the background, unless there is one of this version."""
        if self.store and self.shard.initialised:
            snapshot = self.shard.snapshot()
            # Those of the last two may not be written yet.
            useful = {*self.checkpoints, *sorted(self.places)[-2:]}
            self.places = {version: place for version, place in self.places.items() if version in useful}
            if self.shard.place is not None:
                self.places[self.shard.version] = self.shard.place
            copied = self.store.save(
                ShardCheckpoint(
                    self.name,
                    self.attempt,
                    self.synchronisation,
                    self.model,
                    snapshot,
                    self.part,
                    dict(self.places),
                    self.untrained,
                )
            )
            self.copying = copied or self.copying

    def save_last(self) -> None:
        """Save checkpoints of all versions that the job can go on from, before the process ends.

        A gradient that has arrived completely waits for the other shards, and would be lost. They may have
        it, too: so there is a checkpoint of the version that it leads to, beside the present one.
        """
        self.save()
        if self.store is None or self.fenced or not self.shard.initialised or not self.shard.is_complete:
            return
        if self.copying is not None:
            self.copying.result()
        self.shard.step()
        self.record_step()
        self.save()

    def check_same(
        self, worker: str, model: ModelTensors | None, layout: Layout, sync: Synchronisation
    ) -> None:
        """Check that another worker trains the same model with the same optimiser in the same mode.

        Raises:
            InvalidRequestError: It does not; the error names both sides.
        """
        if self.model and model and (difference := self.model.difference(model)):
            raise InvalidRequestError(f"{difference}: is it the same model?")
        if self.shard.layout.order != layout.order:
            raise InvalidRequestError(
                f"the job has its parameters' elements in the order {self.shard.layout.order!r}, but "
                f"{worker!r} in the order {layout.order!r}: all workers need the same version of evenpace, "
                f"and must give `distribute` the same bucket_cap_mb; those of PyTorch the model, or none"
            )
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
            versions = ", ".join(map(str, self.checkpoints))
            raise RewoundError(
                f"rewind to version {version}: there is {self.shard.version}, "
                f"and {f'checkpoints of {versions}' if versions else 'no checkpoint'}",
                self.attempt,
            )
        store = self.store
        try:
            checkpoint = self._await(("go back", version), lambda: store.go_back(version))
        except UnreadableError as error:  # another attempt goes on from a version that all shards can read
            raise RewoundError(f"rewind to version {version}: {error}", self.attempt) from error
        self.shard.restore(checkpoint.snapshot)
        self.places = dict(checkpoint.places)
        self.shard.place = self.places.get(version)
        self.readers.clear()

    def _remove_after(self, store: JobStore, version: int) -> None:
        """Remove checkpoints of later versions (UnavailableError: it is not done yet)."""
        self._await(("remove what came after", version), lambda: store.remove_after(version))

    def _await(self, what: tuple[str, int], begin: "Callable[[], Future[T]]") -> T:
        """Return the result of another thread's work, begun by the first of several calls for it.

        Raises:
            UnavailableError: The work is not done yet; the call is to be repeated.
        """
        if self._awaited is None or self._awaited[0] != what:
            self._awaited = what, begin()
        future = self._awaited[1]
        if not future.done():
            raise UnavailableError(f"{self.name}: the shard's disk has yet to {' '.join(map(str, what))}")
        self._awaited = None
        return future.result()

    def _append_to_ledger(self, record: Mapping[str, Any]) -> None:
        """Append a record of what happened to the ledger, if there is one."""
        if self.store:
            self.store.append_to_ledger({"attempt": self.attempt, **record})


def _shape(layout: Layout) -> str:
    sizes = ", ".join(f"{group.elements}{' statistics' * group.statistics}" for group in layout.groups)
    return f"{layout.optimizer} on groups of {sizes} elements of {layout.dtype}"
