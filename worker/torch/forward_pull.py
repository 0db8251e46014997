"""PyTorch: parameters that are pulled while the forward pass computes with those that have arrived.

A module's forward pass waits for the tensors that it has itself. Which module uses a tensor is seen in the
first batches: one whose module is not called, as where a parent reads its weight, belongs to the parent's.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from idl.errors import InvalidRequestError
from worker.exchanges.parameter_server import ParameterServer
from worker.flat_order import FlatOrder
from worker.torch.module_hook import ModuleHook

log = logging.getLogger(__name__)

_TRIALS = 3  # batches in which it is seen which modules are called
_MIXED = "the job was rewound while parameters arrived, so that the model has those of two iterations"


class ForwardPull:
    """Waits, before each module's forward pass, for the blocks of parameters that it needs.

    Outside of a training forward pass, as in an evaluation or where a state dictionary is made, all are
    waited for.

    Args:
        server: The worker's exchange.
        model: The model.
        tensors: The tensors of the flat array, with their numbers.
        order: The order of the flat array.
        take: Gives the model the value of a tensor, by its number.
        log_fields: Returns the structured fields of log lines.

    Attributes:
        ends: As in `worker.exchanges.parameter_server.Blocks`.
    """

    def __init__(
        self,
        server: ParameterServer,
        model: nn.Module,
        tensors: Mapping[torch.Tensor, int],
        order: FlatOrder,
        take: Callable[[int], None],
        log_fields: Callable[[], Mapping[str, object]],
    ) -> None:
        self.ends = order.ends
        self._server = server
        self._model = model
        self._tensors = tensors
        self._order = order
        self._take = take
        self._log_fields = log_fields
        self._trials = 0
        self._called: dict[nn.Module, None] = {}  # in the trials, in this order
        self._needs: dict[nn.Module, int] = {}  # the first block, all after which a module needs, too
        self._missing = 0  # blocks, from the first, that the model has not got
        for module in model.modules():
            module.register_forward_pre_hook(ModuleHook(self._await_for), prepend=True)
            module.register_state_dict_pre_hook(ModuleHook(self._await_all))  # type: ignore[no-untyped-call]

    def begin(self) -> bool:
        """Return whether the parameters may arrive while the next batch is computed, and prepare for it."""
        self._trials += 1
        if self._trials == _TRIALS:
            self._needs = self._find_needs()
            if not self._needs:
                log.warning(
                    "pull_ahead: none of the modules of the model that was given was called, as where a "
                    "compiled copy is: parameters are pulled by optimizer.step()",
                    extra=self._log_fields(),
                )
        if not self._needs:
            return False
        self._missing = len(self.ends)
        return True

    @torch.no_grad()
    def complete(self) -> None:
        """Let the model have the blocks that it has not got yet, which have arrived."""
        self._give(0)

    def skip(self) -> None:
        """Note that the model has all parameters."""
        self._missing = 0

    def _await_for(self, module: nn.Module, *arguments: Any) -> None:
        if torch.compiler.is_compiling():  # what is compiled does not call this
            return
        trains = module.training and torch.is_grad_enabled()
        if self._trials < _TRIALS and trains:
            self._called[module] = None
        if not self._missing:
            return
        has = self._await(self._needs.get(module, self._missing) if trains else 0)
        if not has and not trains:
            log.warning("an evaluation: %s", _MIXED, extra=self._log_fields())

    def _await_all(self, *arguments: Any) -> None:
        if not self._await(0):
            raise InvalidRequestError(f"{_MIXED}: save it after the next step")

    @torch.no_grad()
    def _await(self, block: int) -> bool:
        """Wait for a block and those after it, and return whether the model has them."""
        if block < self._missing and self._server.await_block(block):
            self._give(block)
        return block >= self._missing

    def _give(self, block: int) -> None:
        for number in range(self._missing - 1, block - 1, -1):
            for tensor in self._order.buckets[number]:
                self._take(tensor)
        self._missing = min(block, self._missing)

    def _find_needs(self) -> dict[nn.Module, int]:
        """Return for each module that was called the first block with a tensor for which it has to wait."""
        blocks = {number: block for block, bucket in enumerate(self._order.buckets) for number in bucket}
        modules = dict(self._model.named_modules(remove_duplicate=False))
        needs: dict[nn.Module, int] = {}
        waited_for = set()
        for name, module in modules.items():
            caller = self._caller(name, modules)
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if caller is not None and tensor is not None and tensor in self._tensors:
                    number = self._tensors[tensor]
                    needs[caller] = min(blocks[number], needs.get(caller, blocks[number]))
                    waited_for.add(number)
        if self._called and waited_for < set(blocks):  # a tensor of no module that was called
            needs[next(iter(self._called))] = 0
        return needs

    def _caller(self, name: str, modules: Mapping[str, nn.Module]) -> nn.Module | None:
        """Return the module of this name if it was called, or the nearest of those around it that was."""
        while modules[name] not in self._called:
            if not name:
                return None
            name = name.rpartition(".")[0]
        return modules[name]
