"""PyTorch: all that a training goes on with, as one rank sends it to others, and as ranks compare it.

That is the model's parameters and buffers, the optimiser's state and options, its learning-rate schedulers,
and other objects with a state that a script has named.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.optim.lr_scheduler import LRScheduler

from idl.errors import InvalidRequestError
from worker.daemon_thread import Apart
from worker.torch.outlines import filled, outline
from worker.torch.schedules import Schedules
from worker.untrained import check_also


class _Read(NamedTuple):
    """A state's text, as it was read."""

    whose: str  # in words
    kinds: list[str]  # of its schedulers
    objects: list[Any]  # states of the optimiser, the schedulers and the other objects
    flat: list[torch.Tensor]  # the tensors in these, which are to be filled


class TrainingState:
    """The state of one rank's training.

    Args:
        module: The model, without a wrapper.
        optimizer: Its optimiser.
        also: Other objects with `state_dict` and `load_state_dict`, in the same order on all ranks, such as
            a `GradScaler` or an average of the weights.

    Raises:
        InvalidRequestError: One of the other objects lacks these methods, or its state cannot be sent.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, also: Sequence[Any] = ()) -> None:
        check_also(also)
        for one in also:
            outline(one.state_dict(), [])
        self._module = module
        self._optimizer = optimizer
        self._also = also
        self._schedules = Schedules(optimizer)
        # A walk through all modules in each batch takes long.
        self._owners = [one._buffers for one in module.modules()]
        self._buffers: list[torch.Tensor] = []  # as they were before the batch
        self._moving: list[Any] = []  # states of the other objects before the script moves them

    @torch.no_grad()
    def note(self) -> None:
        """Note the buffers, which a forward pass moves, before a batch."""
        self._buffers = [buffer.clone() for buffer in self._own_buffers()]

    def note_moving(self) -> None:
        """Note schedulers and the other objects, which a script moves after its optimiser's step."""
        self._schedules.save()
        self._moving = [copy.deepcopy(one.state_dict()) for one in self._also]

    @torch.no_grad()
    def go_back(self) -> None:
        """Go back to what was noted."""
        for buffer, before in zip(self._own_buffers(), self._buffers, strict=True):
            buffer.copy_(before)
        self._schedules.restore()
        for one, state in zip(self._also, self._moving, strict=False):
            one.load_state_dict(state)
        self._moving = []

    @torch.no_grad()
    def pass_on(self, source: int, group: distributed.ProcessGroup, apart: Apart, *, lacks: bool) -> None:
        """Pass the state of one rank on to those that lack it; all ranks of a group call this.

        Where a single one lacks it, others have no part in the transfer of its tensors. A rank keeps its own
        until all of the sender's has come, and goes back to no state of before that.

        Args:
            source: The rank that sends its state.
            group: A group of gloo's of all ranks; what is on a device goes by way of the CPU.
            apart: Calls what waits for other ranks, and changes nothing here that would stay.
            lacks: Whether this rank lacks it; others keep their own.

        Raises:
            InvalidRequestError: The script has another model than the sender's, or other schedulers.
            RuntimeError: A rank that is needed has gone.
        """
        flags = [torch.empty(1, dtype=torch.bool) for _ in range(distributed.get_world_size(group))]
        apart(distributed.all_gather, flags, torch.tensor([lacks]), group)
        lacking = [rank for rank, flag in enumerate(flags) if flag]
        to = lacking[0] if len(lacking) == 1 else None
        if distributed.get_rank(group) == source:
            self._send(group, apart, to)
        else:
            self._receive(source, group, apart, to, keeps=not lacks)

    def _send(self, group: distributed.ProcessGroup, apart: Apart, to: int | None) -> None:
        """Send the state to one rank, or with None to all; the others call `_receive`."""
        text, tensors = self.packed()
        rank = distributed.get_rank(group)
        apart(distributed.broadcast, torch.tensor([len(text)]), rank, group)
        apart(distributed.broadcast, torch.frombuffer(bytearray(text), dtype=torch.uint8), rank, group)
        apart(self._transfer, tensors, rank, group, to)

    def _receive(
        self, source: int, group: distributed.ProcessGroup, apart: Apart, to: int | None, *, keeps: bool
    ) -> None:
        """Receive the state that a rank sends to one, or with None to all, and take it unless it `keeps`."""
        schedulers = [] if keeps else self._schedules.found()  # while the sender looks for its own
        length = torch.zeros(1, dtype=torch.int64)
        apart(distributed.broadcast, length, source, group)
        text = torch.empty(int(length), dtype=torch.uint8)
        apart(distributed.broadcast, text, source, group)
        state = self._read(text.numpy().tobytes(), f"rank {source}'s")
        if keeps and to is not None:
            return
        received = [torch.empty_like(tensor, device="cpu") for tensor in self._tensors()]
        apart(self._transfer, [*received, *state.flat], source, group, to)
        if not keeps:
            self._put(state, received, schedulers)

    @torch.no_grad()
    def packed(self) -> tuple[bytes, list[torch.Tensor]]:
        """Return all of the state, as text and the tensors in it."""
        schedulers, flat = self._schedules.found(), list[torch.Tensor]()
        kinds = [type(scheduler).__name__ for scheduler in schedulers]
        text = outline([kinds, self._layout(), self._objects(schedulers)], flat)
        return text, [*self._tensors(), *flat]

    @torch.no_grad()
    def take(self, text: bytes, tensors: Sequence[torch.Tensor], whose: str) -> None:
        """Take a state as `packed` has returned it.

        Args:
            whose: Whose it is, in words.

        Raises:
            InvalidRequestError: The script has another model, or other schedulers.
        """
        state, own = self._read(text, whose), len([*self._tensors()])
        for to, value in zip(state.flat, tensors[own:], strict=True):
            to.copy_(value)
        self._put(state, tensors[:own], self._schedules.found())

    def _read(self, text: bytes, whose: str) -> "_Read":
        """Read a state's text (InvalidRequestError: it is of another model)."""
        flat: list[torch.Tensor] = []
        kinds, layout, objects = filled(text, flat)
        for theirs, ours in zip_longest(layout, self._layout()):
            if theirs != ours:
                raise InvalidRequestError(
                    f"this worker's model is not the other workers': it has {ours or 'nothing more'} where "
                    f"{whose} has {theirs or 'nothing more'}"
                )
        return _Read(whose, kinds, objects, flat)

    def _put(self, state: "_Read", values: Sequence[torch.Tensor], schedulers: Sequence[LRScheduler]) -> None:
        """Take a state whose tensors are there (InvalidRequestError: it is of other schedulers).

        Args:
            values: Those of the model.
            schedulers: This script's.
        """
        if state.kinds != [type(scheduler).__name__ for scheduler in schedulers]:
            raise InvalidRequestError(
                f"the optimiser has the schedulers {', '.join(state.kinds) or 'none'} where the state is "
                f"{state.whose}, and {', '.join(type(one).__name__ for one in schedulers) or 'none'} here: "
                f"make the same ones before the training, in the same order"
            )
        for tensor, value in zip(self._tensors(), values, strict=True):
            tensor.copy_(value)
        for one, saved in zip((self._optimizer, *schedulers, *self._also), state.objects, strict=True):
            one.load_state_dict(saved)
        self.note()  # what was noted before is of another state

    @torch.no_grad()
    def compare(self, group: distributed.ProcessGroup, apart: Apart) -> None:
        """Compare parameters and the optimiser's state, by the sums of their bits, over all ranks of a group.

        Args:
            group: As of `pass_on`.
            apart: Likewise.

        Raises:
            InvalidRequestError: Ranks differ; on all ranks.
        """
        named = dict(sorted(self._compared(), key=itemgetter(0)))  # in one order on all ranks
        sums = torch.stack([_bits(tensor) for tensor in named.values()])
        everywhere = [torch.empty_like(sums) for _ in range(distributed.get_world_size(group))]
        apart(distributed.all_gather, everywhere, sums, group)
        for number, name in enumerate(named):
            by_value: dict[int, list[int]] = {}
            for rank, of_rank in enumerate(everywhere):
                by_value.setdefault(int(of_rank[number]), []).append(rank)
            if len(by_value) > 1:
                sides = " from ".join(f"ranks {', '.join(map(str, ranks))}" for ranks in by_value.values())
                raise InvalidRequestError(
                    f"{name} differs between workers that should have the same: {sides}; does the script "
                    f"change it on some of them only? Restart the job from its checkpoint"
                )

    def _own_buffers(self) -> Iterator[torch.Tensor]:
        """Yield the model's buffers, one that several modules share as often."""
        return (buffer for owner in self._owners for buffer in owner.values() if buffer is not None)

    def _layout(self) -> list[str]:
        """Describe the model's tensors, one after the other."""
        named = [*self._module.named_parameters(), *self._module.named_buffers()]
        return [f"{name} of shape {tuple(tensor.shape)}, {tensor.dtype}" for name, tensor in named]

    def _tensors(self) -> Iterator[torch.Tensor]:
        yield from (parameter.data for parameter in self._module.parameters())
        yield from self._module.buffers()

    def _objects(self, schedulers: Sequence[LRScheduler]) -> list[Mapping[str, Any]]:
        return [one.state_dict() for one in (self._optimizer, *schedulers, *self._also)]

    def _compared(self) -> Iterator[tuple[str, torch.Tensor]]:
        names: dict[torch.Tensor, str] = {p: name for name, p in self._module.named_parameters()}
        yield from ((name, parameter.data) for parameter, name in names.items())
        for parameter, state in self._optimizer.state.items():
            for slot, value in state.items():
                if isinstance(value, torch.Tensor):
                    yield f"the optimiser's {slot} of {names.get(parameter, 'a parameter')}", value

    @staticmethod
    def _transfer(
        tensors: Sequence[torch.Tensor], source: int, group: distributed.ProcessGroup, to: int | None
    ) -> None:
        """Send tensors of any type from a rank to another one, or with None to all; in place, all at once."""
        whole = [tensor for tensor in tensors if tensor.numel()]
        flat = [tensor.cpu().contiguous().view(-1) for tensor in whole]
        sends = distributed.get_rank(group) == source
        works = []
        for tag, one in enumerate(flat):
            part = one.view(torch.uint8)
            if to is None:
                works.append(distributed.broadcast(part, source, group, async_op=True))
            elif sends:
                works.append(distributed.isend(part, to, group, tag))
            else:
                works.append(distributed.irecv(part, source, group, tag))
        for work in works:
            work.wait()
        if sends:
            return
        for tensor, one in zip(whole, flat, strict=True):
            if tensor.data_ptr() != one.data_ptr():
                tensor.copy_(one.view(tensor.shape))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's bytes, taken as integers of 8 where they fill them; of no elements, 0.

    Sums of 8-byte integers are several times as fast as those of others, which are converted first.
    """
    whole = tensor.detach().contiguous().view(-1)
    if whole.storage_offset() * whole.element_size() % 8:
        whole = whole.clone()
    in_bytes = whole.view(torch.uint8)
    even = len(in_bytes) // 8 * 8
    return (in_bytes[:even].view(torch.int64).sum() + in_bytes[even:].sum(dtype=torch.int64)).cpu()
