"""`DistributedDataParallel` around one model, made anew for each group of ranks."""

from collections.abc import Callable, Mapping
from socket import socket
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from idl.errors import InvalidRequestError
from worker.torch.abortable_carrier import AbortableCarrier, keep_alive
from worker.torch.formed_group import Wrapper
from worker.torch.group_internals import backend_of
from worker.torch.survivable_group import Carrier, GlooCarrier, SurvivableGroup

# Options of DistributedDataParallel that are not kept in a form which it could be made anew with.
_REFUSED = ("mixed_precision", "_delay_all_reduce_params", "device_mesh", "bucket_cap_mb_list")


class DataParallel(Wrapper):
    """A model in `DistributedDataParallel`, as `FormedGroup` has it wrapped: each rank has all of a state.

    Args:
        by_gloo: Whether its groups are gloo's, and not NCCL's.
        register: Registers the communication hook with the model.

    Raises:
        InvalidRequestError: The model has options with which it cannot be wrapped anew; or NCCL's groups
            would end the process.
    """

    def __init__(self, model: DistributedDataParallel, by_gloo: bool, register: Callable[[], None]) -> None:
        for option in _REFUSED:
            if getattr(model, option, None):
                raise InvalidRequestError(
                    f"{option.strip('_')}: DistributedDataParallel with it cannot be wrapped anew for "
                    f"another group; leave it out, or start the workers by torchrun"
                )
        if not by_gloo:
            keep_alive()
        self._model = model
        self._by_gloo = by_gloo
        self._register = register
        self._device: torch.device = next(model.parameters()).device

    def leave(self) -> None:
        """Take the model out of its wrapper, whose group has been closed."""
        model = self._model
        # The old wrapper goes before its group, which it holds; after a failure there may be neither.
        if model.reducer is not None:
            model.reducer._remove_autograd_hooks()
        for holder in ("reducer", "logger", "process_group"):
            setattr(model, holder, None)

    def group(self, inner: Any, connections: list[socket], members: Mapping[str, str]) -> SurvivableGroup:
        """Return a group in which the model can be wrapped."""
        carrier: Carrier = GlooCarrier(connections)
        if not self._by_gloo:
            carrier = AbortableCarrier(backend_of(inner, self._device).abort, connections)
        return SurvivableGroup(inner, carrier)

    def enter(self, group: SurvivableGroup) -> None:
        """Wrap the model in a group, whose other members do so, too."""
        _wrap(self._model, group)

    def begin(self) -> None:
        """Register the communication hook."""
        self._register()


def _wrap(model: DistributedDataParallel, group: distributed.ProcessGroup) -> None:
    """Make a wrapper anew, in place, in another group; its options and hooks stay."""
    kept: dict[str, Any] = {
        name: value for name, value in vars(model).items() if name.endswith(("_hooks", "_hooks_with_kwargs"))
    }
    training = model.training
    names = ("forward_sync_buffers", "broadcast_buffers")  # in later and earlier versions of PyTorch
    sync = next(name for name in names if hasattr(model, name))
    default = getattr(model, "bucket_bytes_cap_default", False)
    DistributedDataParallel.__init__(
        model,
        model.module,
        device_ids=model.device_ids,
        output_device=model.output_device,
        dim=model.dim,
        init_sync=False,
        process_group=group,
        bucket_cap_mb=None if default else model.bucket_bytes_cap / 2**20,
        find_unused_parameters=model.find_unused_parameters,
        gradient_as_bucket_view=model.gradient_as_bucket_view,
        static_graph=model.static_graph,
        **{sync: getattr(model, sync)},
    )
    model.train(training)
    for name, hooks in kept.items():
        if isinstance(hooks, dict):
            getattr(model, name).update(hooks)
