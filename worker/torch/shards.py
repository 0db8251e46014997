"""FSDP2: a model whose ranks have a shard of each parameter, in groups that the manager forms.

For another group, the members of the present one gather all parameters and the optimiser's state, and take
`fully_shard` back; once all members of the next one have the state, each is given its shard of it. Of what
PyTorch does not offer by itself, this module takes private parts, as of PyTorch 2.13.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from socket import socket
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import _composable_state
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from idl.errors import InvalidRequestError
from worker.daemon_thread import in_daemon
from worker.session import Session
from worker.torch.lost_shards import GO_ON, end_once_stuck
from worker.torch.reaching import unreached

_LOOK_SECONDS = 0.5  # between two looks for members that are gone
_MOST_SECONDS = 30.0  # to gather one tensor
_SETTINGS = (
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
    "unshard_in_backward",
    "reshard_after_backward",
    "reduce_grads",
    "all_reduce_grads",
)  # of a group of parameters, which a script may have set


@dataclass(frozen=True)
class _Unit:
    """Modules to which `fully_shard` was applied at once, and with what."""

    modules: list[nn.Module]
    reshard_after_forward: bool | None
    mp_policy: MixedPrecisionPolicy
    settings: Mapping[str, Any]


class Shards:
    """This rank's shards of a model in FSDP2 and of its optimiser's state, or all of both.

    Args:
        model: The model, to which `fully_shard` was applied.
        optimizer: Its optimiser.
        shard_size: Ranks that share one copy of the parameters, at least, where the mesh has two dimensions,
            of copies and of shards; None for a mesh of one.

    Attributes:
        gathered: Number of tensors that were gathered so far.

    Raises:
        InvalidRequestError: The model is sharded in a way that cannot be done again for another group, or
            the optimiser has parameters that are not sharded; or `shard_size` is below 1.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, shard_size: int | None = None
    ) -> None:
        if shard_size is not None and shard_size < 1:
            raise InvalidRequestError(f"shard_size {shard_size}: must be at least 1")
        self.gathered = 0
        self._model = model
        self._optimizer = optimizer
        self._units: list[_Unit] = []  # while the model is whole, those that it is to have again
        self._shard_size = shard_size
        self._axes: tuple[str, ...] | None = None  # names of the mesh's dimensions
        sharded = {id(one.sharded_param) for state in self._states() for one in _parameters_of(state)}
        for name, parameter in model.named_parameters():
            if id(parameter) not in sharded:
                raise InvalidRequestError(
                    f"{name} is in no shard: apply fully_shard to the whole model, without ignored_params"
                )
        if any(id(one) not in sharded for group in optimizer.param_groups for one in group["params"]):
            raise InvalidRequestError(
                "the optimiser has parameters that are not the sharded model's: make it after fully_shard, "
                "of the model's parameters"
            )
        for state in self._states():
            for one in _parameters_of(state):
                _check_can_be_sharded_again(one, shard_size)
                self._axes = one.mesh_info.mesh.mesh_dim_names

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all parameters."""
        return bool(self._units)

    @torch.no_grad()
    def gather(self) -> None:
        """Gather all parameters and the optimiser's state, and take `fully_shard` back.

        All ranks of the group call this between two steps; gradients are dropped.

        Raises:
            RuntimeError: A rank has gone.
        """
        states = list(self._states())
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        # All that waits for other ranks comes first, so that an error leaves the shards as they are.
        shards = [one.sharded_param for state in states for one in _parameters_of(state)]
        whole = {shard: nn.Parameter(self._whole(shard), shard.requires_grad) for shard in shards}
        slots = {
            whole[shard]: {name: self._whole(value) for name, value in self._optimizer.state[shard].items()}
            for shard in shards
            if shard in self._optimizer.state
        }
        for state in states:
            for one in _parameters_of(state):
                shard = one.sharded_param
                one._setattr_on_modules(whole[shard])
                one._post_load_hook_handle.remove()
            self._units.append(_taken_back(state))
        self._give_optimizer(whole, slots)

    @torch.no_grad()
    def scatter(self, device: torch.device) -> None:
        """Apply `fully_shard` again, for the ranks of torch.distributed's default group, and drop the rest.

        Args:
            device: The parameters' device.
        """
        # What was cached for a mesh of the same ranks is wrong where this rank was another one in it.
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
        shape = mesh_shape(distributed.get_world_size(), self._shard_size)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=self._axes)
        before: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        for unit in self._units:
            of = unit.modules if len(unit.modules) > 1 else unit.modules[0]
            fully_shard(
                of,
                mesh=mesh,
                reshard_after_forward=unit.reshard_after_forward,
                mp_policy=unit.mp_policy,
            )
            for group in fully_shard.state(unit.modules[0])._fsdp_param_groups:  # type: ignore[attr-defined]
                vars(group).update(unit.settings)
        self._units = []
        after = dict(self._model.named_parameters())
        shards = {parameter: after[name] for name, parameter in before.items()}
        slots = {
            shards[parameter]: {
                name: _shard_like(shards[parameter], value) if _is_slot(value, parameter) else value
                for name, value in state.items()
            }
            for parameter, state in self._optimizer.state.items()
        }
        self._give_optimizer(shards, slots)

    def _states(self) -> Iterator[Any]:
        """Yield FSDP2's states, those of inner modules first, each once."""
        modules = [module for module in self._model.modules() if isinstance(module, FSDPModule)]
        states = [module._get_fsdp_state() for module in reversed(modules)]
        yield from dict.fromkeys(states)

    def _whole(self, value: Any) -> Any:
        """Return a tensor with the shards of all ranks, which call this; others as they are."""
        if not isinstance(value, DTensor):
            return value
        whole = value.full_tensor().clone()
        self.gathered += 1
        return whole

    def _give_optimizer(self, parameters: Mapping[Any, Any], slots: Mapping[Any, Any]) -> None:
        """Give the optimiser other parameters in the place of its own, and their state."""
        for group in self._optimizer.param_groups:
            group["params"] = [parameters[one] for one in group["params"]]
        self._optimizer.state.clear()
        self._optimizer.state.update(slots)


class FullyShard:
    """A model in FSDP2, as `FormedGroup` has it sharded; see `Wrapper`.

    Args:
        session: This worker's session.
        model: The model, to which `fully_shard` was applied.
        shards: Its shards.
    """

    def __init__(self, session: Session, model: nn.Module, shards: Shards) -> None:
        self._session = session
        self._device: torch.device = next(model.parameters()).device
        self._shards = shards

    def leave(self) -> None:
        """Do nothing: the model is whole, and was so before the members met."""

    def group(self, inner: Any, connections: list[socket], members: Mapping[str, str]) -> "ShardedGroup":
        """Return a group in which the model can be sharded."""
        return ShardedGroup(self._session, self._shards, connections, members)

    def enter(self, group: "ShardedGroup") -> None:
        """Do nothing: the model is whole until all have the state."""

    def begin(self) -> None:
        """Shard the model and the optimiser's state."""
        self._shards.scatter(self._device)


class ShardedGroup:
    """The process group of a model in FSDP2, in which each member has a part that no other has.

    Args:
        session: This worker's session.
        shards: The model's shards.
        connections: Duplicates of the group's connections.
        members: Addresses at which its members listen as long as they live, by name.
    """

    def __init__(
        self, session: Session, shards: Shards, connections: list[socket], members: Mapping[str, str]
    ) -> None:
        self._session = session
        self._shards = shards
        self._connections = connections
        self._members = members
        self._in_batch = False

    def begin(self) -> None:
        """Note that a batch begins."""
        self._in_batch = True

    def settle(self) -> str | None:
        """Note that the batch has ended; what could not be completed has raised an error in the script.

        Returns:
            None.
        """
        self._in_batch = False
        return None

    def cut(self) -> None:
        """Have this process end where the group is given up within a batch; may be called by any thread.

        A member has been taken out then. Between two batches the members gather the state for another group.
        """
        if self._in_batch:
            arguments = (self._session, "another group is to be formed", lambda: not self._in_batch)
            threading.Thread(target=end_once_stuck, args=arguments, name="evenpace-end", daemon=True).start()

    def leave(self) -> None:
        """Gather the state, unless that was done, with all other members.

        Raises:
            InvalidRequestError: A member is gone, and its shards with it.
        """
        if self._shards.is_whole:
            return
        gathered, since = self._shards.gathered, time.monotonic()
        gathering = in_daemon(self._shards.gather)
        while not wait([gathering], _LOOK_SECONDS).done:
            if gone := unreached(self._members):
                raise InvalidRequestError(f"{', '.join(gone)} cannot be reached: {GO_ON}")
            if gathered != self._shards.gathered:
                gathered, since = self._shards.gathered, time.monotonic()
            elif time.monotonic() > since + _MOST_SECONDS:
                raise InvalidRequestError(
                    f"a worker has not handed on its state for {_MOST_SECONDS:g} s: {GO_ON}"
                )
        try:
            gathering.result()
        except RuntimeError as error:
            raise InvalidRequestError(f"the state cannot be gathered ({error}): {GO_ON}") from error

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections:
            connection.close()


def _parameters_of(state: Any) -> Iterator[Any]:
    for group in state._fsdp_param_groups:
        yield from group.fsdp_params


def mesh_shape(ranks: int, shard_size: int | None) -> tuple[int, ...]:
    """Return the shape of a mesh of ranks, (copies, shards) or (shards,).

    Args:
        ranks: Number of ranks.
        shard_size: Shards, at least; as many as divide the ranks, and no more ranks than there are. None for
            a mesh of one dimension.
    """
    if shard_size is None:
        return (ranks,)
    shards = next(size for size in range(min(shard_size, ranks), ranks + 1) if ranks % size == 0)
    return (ranks // shards, shards)


def _check_can_be_sharded_again(one: Any, shard_size: int | None) -> None:
    """Check that a parameter is sharded as `fully_shard` does it by default, over a mesh for `shard_size`.

    Raises:
        InvalidRequestError: It is not.
    """
    mesh, after = one.mesh_info.mesh, one.post_forward_mesh_info
    if mesh.ndim == 2 and shard_size is None and not one.is_dtensor:
        raise InvalidRequestError(
            "fully_shard with a mesh of 2 dimensions: give balance the `shard_size`, the number of ranks, at "
            "least, that share one copy of the parameters"
        )
    if mesh.ndim == 1 and shard_size is not None:
        raise InvalidRequestError(
            f"shard_size {shard_size}: only for fully_shard with a mesh of 2 dimensions, of copies and of "
            f"shards, such as init_device_mesh(device, (1, 1)); leave it out for one of shards alone"
        )
    wrong = None
    if one.is_dtensor:
        wrong = "parameters that are DTensors"
    elif one.fsdp_placement != Shard(0):
        wrong = f"placement {one.fsdp_placement}"
    elif one.offload_to_cpu:
        wrong = "an offload_policy"
    elif after is not None and after.shard_mesh_size != one.mesh_info.shard_mesh_size:
        wrong = f"reshard_after_forward={after.shard_mesh_size}"
    if wrong is not None:
        raise InvalidRequestError(
            f"fully_shard with {wrong}: a group that the manager has formed takes meshes of one or two "
            f"dimensions, and neither shard_placement_fn, offload_policy nor a number in "
            f"reshard_after_forward; leave it out, or start the processes by torchrun, and scale the loss by "
            f"weighted(loss)"
        )


def _taken_back(state: Any) -> _Unit:
    """Take `fully_shard` back from a state's modules, and return what it was called with."""
    groups = state._fsdp_param_groups
    reshard: bool | None = None
    if not state._auto_reshard_after_forward:
        reshard = any(group.post_forward_mesh_info is not None for group in groups)
    settings = {name: vars(groups[0])[name] for name in _SETTINGS if groups and name in vars(groups[0])}
    for handle in (state._pre_forward_hook_handle, state._post_forward_hook_handle):
        handle.remove()
    for module in state._modules:
        states, name = vars(module)[STATE_KEY], fully_shard.__name__
        for function in [function for function in states if function.__name__ == name]:
            del states[function]
        del vars(module)[REGISTRY_KEY][name]
        del _composable_state._module_state_mapping[module]
        kind = type(module)
        module.__class__ = kind.__mro__[kind._orig_cls_mro_index]
    return _Unit(list(state._modules), reshard, state._mp_policy, settings)


def _is_slot(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.ndim > 0


def _shard_like(parameter: Any, value: torch.Tensor) -> DTensor:
    """Return this rank's shard of a tensor of a parameter's shape, as `fully_shard` has cut that up."""
    mesh = parameter.device_mesh
    parts, rank = value.chunk(mesh.size(-1)), mesh.get_local_rank(mesh.ndim - 1)
    own = parts[rank].clone() if rank < len(parts) else value[:0].clone()
    return DTensor.from_local(
        own, mesh, parameter.placements, run_check=False, shape=value.shape, stride=value.stride()
    )
