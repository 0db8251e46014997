"""FSDP2 over a mesh of copies and shards: a rank may die where each of its shards has another copy.

A rank whose gradient is complete knows nothing of the ranks of other shards, and a step that only some shards
have made is none. So before each step all ranks make one small reduction: whoever completes it knows that
*all* have entered it, and so have their gradients, and steps. Whoever has entered it without completing it
holds its gradient. In the next group it makes that step after all if others have made theirs, so that no
shard is lost with them; else the gradient is dropped.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from functools import partial
from socket import socket
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh

from idl.errors import InvalidRequestError
from worker.daemon_thread import Apart
from worker.session import Session
from worker.torch.formed_group import Wrapper
from worker.torch.group_internals import put_in_place
from worker.torch.lost_shards import GO_ON
from worker.torch.sharded_group import gather
from worker.torch.shards import Part, Shards, is_slot, mesh_shape
from worker.torch.survivable_group import GlooCarrier, SurvivableGroup
from worker.torch.weight_sums import WeightSum

_NAMES = ("copies", "shards")  # of the mesh's dimensions where the script has given none
_WHOLE = -1  # in place of a shard's index


@dataclass(frozen=True)
class _Holding:
    """What a member has of which state, as it tells the others."""

    lacks: int  # whether it lacks the newest state, as the manager knows
    attempt: int  # the attempt with whose state it began
    steps: int  # steps that it has made since
    holds_gradient: int  # whether it has the gradient of one more
    index: int  # its shard; `_WHOLE` for all of them
    count: int  # number of shards

    def is_a_step_behind(self, other: "_Holding") -> bool:
        """Return whether this member has all that it needs for the step that makes its state another's."""
        return bool(self.holds_gradient) and (self.attempt, self.steps + 1) == (other.attempt, other.steps)


class ReplicatedShards(Wrapper):
    """A model in FSDP2 over a mesh of copies and shards, as `FormedGroup` has it sharded; see `Wrapper`.

    Args:
        model: The model, to which `fully_shard` was applied.
        optimizer: Its optimiser.
        shard_size: Ranks that share one copy of the parameters, at least.
    """

    def __init__(
        self,
        session: Session,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        shards: Shards,
        shard_size: int,
    ) -> None:
        self._session = session
        self._model = model
        self._optimizer = optimizer
        self._device: torch.device = next(model.parameters()).device
        self._shards = shards
        self._shard_size = shard_size
        self._part: Part | None = None  # this rank's, until it has all of a state
        self._attempt = -1  # that the state is of
        self._mesh: DeviceMesh | None = None
        self._carrier = GlooCarrier([])
        self._within: list[SurvivableGroup] = []

    def leave(self) -> None:
        """Take this rank's part of the state out of the group, which has been closed."""
        if (part := self._shards.detach()) is not None:
            self._part = part

    def connect(self, seconds: timedelta) -> None:
        """Form the groups of copies and of shards."""
        size = distributed.get_world_size()
        ranks = torch.arange(size).view(mesh_shape(size, self._shard_size))
        self._carrier = GlooCarrier([])
        self._within = []
        for lines in (ranks.T, ranks):
            made = [distributed.new_group(line, timeout=seconds) for line in lines.tolist()]
            own = next(one for one in made if one is not distributed.GroupMember.NON_GROUP_MEMBER)
            self._within.append(SurvivableGroup(own, self._carrier))
            put_in_place(self._within[-1], own)
        names = self._shards.axes or _NAMES
        self._mesh = DeviceMesh.from_group([*self._within], self._device.type, ranks, mesh_dim_names=names)

    def group(self, inner: Any, connections: list[socket], members: Mapping[str, str]) -> "ReplicatedGroup":
        """Return a group in which the model can be sharded."""
        self._carrier.connections = connections
        every = SurvivableGroup(inner, self._carrier)
        self._session.weights.add_up = partial(WeightSum, device=self._device, group=every)
        return ReplicatedGroup(self._session, self._shards, self._carrier, every, self._within, members)

    @contextlib.contextmanager
    def complete(
        self, attempt: int, group: distributed.ProcessGroup, apart: Apart, *, lacks: bool
    ) -> Iterator[bool]:
        """Give each member that has a shard of the newest state all others; see `Wrapper`."""
        yield self._assemble(group, apart, lacks=lacks)
        self._part, self._attempt, self._shards.steps = None, attempt, 0

    def begin(self) -> None:
        """Shard the model and the optimiser's state."""
        assert self._mesh is not None
        self._shards.scatter(self._mesh)

    @torch.no_grad()
    def _assemble(self, group: distributed.ProcessGroup, apart: Apart, *, lacks: bool) -> bool:
        """Have all members that hold a shard of the newest state hold the whole of it; all members call this.

        What this rank had before stays until it has all of a state, as another member may die.

        Returns:
            Whether this rank has sent or received shards.
        """
        part, rank = self._part, distributed.get_rank(group)
        index, count = (part.index, part.count) if part else (_WHOLE, 1)
        waits = int(part is not None and bool(part.gradients))
        own = _Holding(int(lacks), self._attempt, self._shards.steps, waits, index, count)
        rows = [
            torch.empty(len(astuple(own)), dtype=torch.int64) for _ in range(distributed.get_world_size())
        ]
        apart(distributed.all_gather, rows, torch.tensor(astuple(own)), group)
        members = [_Holding(*row.tolist()) for row in rows]
        newest = next(one for one in members if not one.lacks)
        holders = {
            place: one for place, one in enumerate(members) if not one.lacks or one.is_a_step_behind(newest)
        }
        count = max(one.count for one in holders.values())
        sources = [
            [place for place, one in holders.items() if one.index in (_WHOLE, shard)]
            for shard in range(count)
        ]
        if not all(sources):
            gone = ", ".join(str(shard) for shard in range(count) if not sources[shard])
            raise InvalidRequestError(f"no worker has shard {gone} of {count} any more: {GO_ON}")
        if rank not in holders or all(one.index == _WHOLE for one in holders.values()):
            return False
        if part is not None:
            self._fill(self._stepped(part) if lacks else part)
        ways = [
            _Way(shard, sources[shard][number % len(sources[shard])], to)
            for shard in range(count)
            for number, to in enumerate(place for place in holders if place not in sources[shard])
        ]
        own_ways = [way for way in ways if rank in (way.source, way.to)]
        for own_part, received in apart(_carry, list(self._tensors()), count, own_ways, group):
            own_part.copy_(received)
        self._session.log.of(__name__).info(
            "took the state from %d shards%s", count, ", after a step that others had made" if lacks else ""
        )
        return True

    def _stepped(self, part: Part) -> Part:
        """Return a part after the step with its gradients, which was not known to be one; keep the part."""
        optimizer, give = self._optimizer, self._shards.give_optimizer
        shards = {whole: nn.Parameter(one.clone()) for whole, one in part.shards.items()}
        give(shards, {shards[whole]: copy.deepcopy(slots) for whole, slots in part.slots.items()})
        for whole, gradient in part.gradients.items():
            shards[whole].grad = gradient
        type(optimizer).step(optimizer)  # not the one that is guarded
        slots = {whole: optimizer.state[one] for whole, one in shards.items() if one in optimizer.state}
        give({one: whole for whole, one in shards.items()}, {})
        return replace(part, shards=shards, slots=slots)

    def _fill(self, part: Part) -> None:
        """Put a part into its place in the parameters and the optimiser's state."""
        self._optimizer.state.clear()
        for whole, slots in part.slots.items():
            self._optimizer.state[whole] = {
                name: _like(value, whole) if is_slot(value, part.shards[whole]) else value
                for name, value in slots.items()
            }
        for whole, shard in part.shards.items():
            _chunk(whole, part.count, part.index).copy_(shard)
            for name, value in part.slots.get(whole, {}).items():
                if is_slot(value, shard):
                    _chunk(self._optimizer.state[whole][name], part.count, part.index).copy_(value)

    def _tensors(self) -> Iterator[torch.Tensor]:
        """Yield parameters and the optimiser's state of them, in one order on all ranks."""
        for parameter in self._model.parameters():
            yield parameter.data
            slots = self._optimizer.state.get(parameter, {})
            yield from (slots[name] for name in sorted(slots) if is_slot(slots[name], parameter))


class ReplicatedGroup:
    """The process group of a model in FSDP2 over a mesh of copies and shards.

    Args:
        carrier: Carries the operations of all groups.
        every: The group of all ranks.
        within: Those of copies and of shards that this rank is in.
        members: Addresses at which its members listen as long as they live, by name.
    """

    def __init__(
        self,
        session: Session,
        shards: Shards,
        carrier: GlooCarrier,
        every: SurvivableGroup,
        within: Sequence[SurvivableGroup],
        members: Mapping[str, str],
    ) -> None:
        self._session = session
        self._shards = shards
        self._carrier = carrier
        self._every = every
        self._within = within
        self._members = members
        self._counts = False  # that the batch does, and no other has begun

    def begin(self) -> None:
        """Begin a batch, in which operations end without an error until its step."""
        self._counts = self._carrier.raises = False

    def commit(self) -> str | None:
        """Have all ranks say that their gradients are complete; return why this one may not step, or None.

        Operations raise errors from the step on until the next batch begins, as in an evaluation: nothing
        would notice there that they could not be completed.
        """
        if self._carrier.broken is None:
            self._every.allreduce([torch.zeros(1)]).wait()
            if self._carrier.broken is None:
                self._counts = self._carrier.raises = True
                self._shards.steps += 1
            else:
                self._shards.hold_gradients()
        return self._carrier.broken

    def settle(self) -> str | None:
        """Return why the batch does not count; None if it does so far."""
        return None if self._counts else self._carrier.broken

    def cut(self) -> None:
        """Let nothing wait for members that are gone; may be called by any thread.

        Once a batch counts, that is left to whoever waits: members have yet to gather the state.
        """
        if not self._counts:
            self._carrier.cut()

    def leave(self) -> None:
        """Gather the state with all other members; where one is gone, this rank goes on with its shards."""
        if self._shards.is_whole:
            return
        try:
            if self._counts:
                gather(self._shards, self._members)
        except InvalidRequestError as error:
            self._session.log.of(__name__).info("goes on with its shards: %s", error)
        if not self._shards.is_whole:
            self._carrier.cut()  # so that no other rank waits for this one

    def close(self) -> None:
        """End all operations; afterwards the groups may be destroyed."""
        for group in (self._every, *self._within):
            group.close()


@dataclass(frozen=True)
class _Way:
    """The way of a shard from one rank to another."""

    shard: int
    source: int
    to: int


def _carry(
    tensors: Sequence[torch.Tensor], count: int, ways: Sequence[_Way], group: distributed.ProcessGroup
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Send and receive shards of tensors, all at once.

    Returns:
        Parts of the tensors, with what was received for them.
    """
    rank, landed = distributed.get_rank(group), []
    works: list[Any] = []
    for way in ways:
        for tag, tensor in enumerate(tensors):
            own = _chunk(tensor, count, way.shard)
            if not own.numel():
                continue
            if way.source == rank:
                works.append(distributed.isend(_in_bytes(own.cpu().contiguous()), way.to, group, tag))
            else:
                landed.append((own, torch.empty(own.shape, dtype=own.dtype)))
                works.append(distributed.irecv(_in_bytes(landed[-1][1]), way.source, group, tag))
    for work in works:
        work.wait()
    return landed


def _in_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _chunk(tensor: torch.Tensor, count: int, index: int) -> torch.Tensor:
    """Return the part of a tensor that is a shard of it, as `fully_shard` cuts it up."""
    parts = tensor.chunk(count)
    return parts[index] if index < len(parts) else tensor[:0]


def _like(value: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    return torch.empty(whole.shape, dtype=value.dtype, device=value.device)
