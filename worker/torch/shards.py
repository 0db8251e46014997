"""FSDP2: a model whose ranks have a shard of each parameter, in groups that the manager forms.

For another group, the members of the present one gather all parameters and the optimiser's state, and take
`fully_shard` back; once all members of the next one have the state, each is given its shard of it. Of what
PyTorch does not offer by itself, this module takes private parts, as of PyTorch 2.13.
"""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed import _composable_state
from torch.distributed._composable.contract import REGISTRY_KEY, STATE_KEY
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from idl.errors import InvalidRequestError

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


@dataclass
class Part:
    """One shard of all parameters and of the optimiser's state, without the other ranks."""

    index: int  # which shard it is
    count: int  # number of shards
    # Shards of parameters, by the whole parameters that are to have them.
    shards: dict[nn.Parameter, nn.Parameter] = field(default_factory=dict)
    # The optimiser's state of them, likewise.
    slots: dict[nn.Parameter, dict[str, Any]] = field(default_factory=dict)
    gradients: dict[nn.Parameter, torch.Tensor] = field(default_factory=dict)  # their gradients, likewise


class Shards:
    """This rank's shards of a model in FSDP2 and of its optimiser's state, or all of both.

    Args:
        model: The model, to which `fully_shard` was applied.
        optimizer: Its optimiser.
        shard_size: Ranks that share one copy of the parameters, at least, where the mesh has two dimensions,
            of copies and of shards; None for a mesh of one.

    Attributes:
        gathered: Number of tensors that were gathered so far.
        steps: Steps that were made since the group began.
        axes: Names of the mesh's dimensions; None for none.

    Raises:
        InvalidRequestError: The model is sharded in a way that cannot be done again for another group, or
            the optimiser has parameters that are not sharded; or `shard_size` is below 1.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, shard_size: int | None = None
    ) -> None:
        if shard_size is not None and shard_size < 1:
            raise InvalidRequestError(f"shard_size {shard_size}: must be at least 1")
        self.gathered = self.steps = 0
        self._model = model
        self._optimizer = optimizer
        self._units: list[_Unit] = []  # while the model is whole, those that it is to have again
        self.axes: tuple[str, ...] | None = None
        self._lock = threading.Lock()  # of the change between shards and all of them
        self._held: dict[Any, Any] = {}  # gradients that a step may be made with after all, by parameter
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
                self.axes = one.mesh_info.mesh.mesh_dim_names

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
        with self._lock:
            self._gather()

    def _gather(self) -> None:
        states = self._resharded()
        # All that waits for other ranks comes first, so that an error leaves the shards as they are.
        shards = [one.sharded_param for state in states for one in _parameters_of(state)]
        whole = {shard: nn.Parameter(self._whole(shard), shard.requires_grad) for shard in shards}
        slots = {
            whole[shard]: {name: self._whole(value) for name, value in self._optimizer.state[shard].items()}
            for shard in shards
            if shard in self._optimizer.state
        }
        self._take_back(states, whole)
        self.give_optimizer(whole, slots)

    def hold_gradients(self) -> None:
        """Hold the gradients, which `detach` returns, since other ranks may make the step with theirs."""
        own = (one for group in self._optimizer.param_groups for one in group["params"])
        self._held = {one: one.grad for one in own if one.grad is not None}

    @torch.no_grad()
    def detach(self) -> Part | None:
        """Take `fully_shard` back without the other ranks, and return this rank's part of the state.

        The model's parameters have nothing in them then, and the optimiser has no state. Where all is
        gathered, or is by a call that is under way, nothing changes, and None is returned.
        """
        with self._lock:
            return None if self.is_whole else self._detach()

    def _detach(self) -> Part:
        states = self._resharded()
        units = [one for state in states for one in _parameters_of(state)]
        mesh = units[0].sharded_param.device_mesh
        whole = {one.sharded_param: _void(one.sharded_param) for one in units}
        part = Part(mesh.get_local_rank(mesh.ndim - 1), mesh.size(-1))
        for shard, parameter in whole.items():
            part.shards[parameter] = nn.Parameter(_local(shard.detach()).clone(), shard.requires_grad)
            if shard in self._optimizer.state:
                slots = self._optimizer.state[shard].items()
                part.slots[parameter] = {name: _local(value) for name, value in slots}
            if shard in self._held:
                part.gradients[parameter] = _local(self._held[shard])
        self._held = {}
        self._take_back(states, whole)
        self.give_optimizer(whole, {})
        return part

    @torch.no_grad()
    def scatter(self, mesh: DeviceMesh) -> None:
        """Apply `fully_shard` again, for the ranks of a mesh, and drop the rest."""
        # What was cached for a mesh of the same ranks is wrong where this rank was another one in it.
        _clear_sharding_prop_cache()
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
                name: _shard_like(shards[parameter], value) if is_slot(value, parameter) else value
                for name, value in state.items()
            }
            for parameter, state in self._optimizer.state.items()
        }
        self.give_optimizer(shards, slots)

    def _states(self) -> Iterator[Any]:
        """Yield FSDP2's states, those of inner modules first, each once."""
        modules = [module for module in self._model.modules() if isinstance(module, FSDPModule)]
        states = [module._get_fsdp_state() for module in reversed(modules)]
        yield from dict.fromkeys(states)

    def _resharded(self) -> list[Any]:
        """Return FSDP2's states, all of whose parameters are in shards from now on."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return list(self._states())

    def _take_back(self, states: Sequence[Any], whole: Mapping[Any, nn.Parameter]) -> None:
        """Take `fully_shard` back, and give the model other parameters in the place of shards."""
        for state in states:
            for one in _parameters_of(state):
                one._setattr_on_modules(whole[one.sharded_param])
                one._post_load_hook_handle.remove()
            self._units.append(_taken_back(state))

    def _whole(self, value: Any) -> Any:
        """Return a tensor with the shards of all ranks, which call this; others as they are."""
        if not isinstance(value, DTensor):
            return value
        whole = value.full_tensor().clone()
        self.gathered += 1
        return whole

    def give_optimizer(self, parameters: Mapping[Any, Any], slots: Mapping[Any, Any]) -> None:
        """Give the optimiser other parameters in the place of its own, and their state."""
        for group in self._optimizer.param_groups:
            group["params"] = [parameters[one] for one in group["params"]]
        self._optimizer.state.clear()
        self._optimizer.state.update(slots)


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


def _void(shard: Any) -> nn.Parameter:
    """Return a parameter of a sharded one's whole shape, with nothing in it: NaN where the type has it."""
    filler = math.nan if shard.is_floating_point() else 0
    whole = torch.full(shard.shape, filler, dtype=shard.dtype, device=_local(shard).device)
    return nn.Parameter(whole, shard.requires_grad)


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def is_slot(value: Any, parameter: torch.Tensor) -> bool:
    """Return whether a value of the optimiser's state is one of a parameter's shape, or its shard's."""
    return isinstance(value, torch.Tensor) and value.shape == parameter.shape and value.ndim > 0


def _shard_like(parameter: Any, value: torch.Tensor) -> DTensor:
    """Return this rank's shard of a tensor of a parameter's shape, as `fully_shard` has cut that up."""
    mesh = parameter.device_mesh
    parts, rank = value.chunk(mesh.size(-1)), mesh.get_local_rank(mesh.ndim - 1)
    own = parts[rank].clone() if rank < len(parts) else value[:0].clone()
    return DTensor.from_local(
        own, mesh, parameter.placements, run_check=False, shape=value.shape, stride=value.stride()
    )
