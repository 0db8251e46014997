"""PyTorch: a worker's slice in micro-batches, one after the other, or several at once on streams of a GPU.

The gradient of a slice, and what it does to the model's running statistics, are weighted means over its
micro-batches, each of which is the same on any worker. So they do not depend on how a batch is split.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from idl.errors import InvalidRequestError
from worker.data import sliced_batch
from worker.data.micro_batches import MicroBatch
from worker.torch.exact_sums import ExactSums
from worker.torch.gradient_norms import PassNorms, squared_norm_of
from worker.torch.preconditioner import Preconditioner
from worker.torch.randomness import seed_generators
from worker.torch.running_statistics import RunningStatistics, refuse_single_values, running_statistics
from worker.torch.streams import Lane

if TYPE_CHECKING:  # so that this runs without the packages of the services' clients, as in lab/gpu
    from worker.data.slices import Slice
    from worker.session import Session


EVERY_OFF_CPU = 8  # iterations, of which one has norms of micro-batches: launching kernels takes long
_MARKED = 2**16  # elements of a tensor, at most, whose norm is taken before and after the script scales


class Accumulation:
    """The sums over the micro-batches of a slice: gradients in the parameters' `grad`, running statistics.

    Where one micro-batch is computed at once, its backward pass adds to the sum. Where there are several,
    each has a lane of its own until its result is added, in the order of the cuts: so the sum is the same to
    the last bit. Off the CPU, one that is alone has a lane, too, where the norm of its gradient is taken: a
    few kernels then serve all parameters, while hooks of each would keep the device waiting.

    Args:
        parameters: Those that are trained, at least one.
        model: The model, for its batch normalisation's running statistics; None where they are no concern.
        reduce: Sums a tensor over the ranks of a process group, where the model is in
            `DistributedDataParallel`.
        preconditioner: That of the ranks' optimiser, for the norms of gradients; None for none.

    Attributes:
        last_factor: What the sums in `grad` are multiplied by after the micro-batch that is computed at
            present; None unless it is the last of its slice, and its backward pass adds to `grad`.
    """

    def __init__(
        self,
        session: "Session",
        parameters: Sequence[torch.Tensor],
        model: nn.Module | None,
        reduce: Callable[[torch.Tensor, distributed.ProcessGroup], None] | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> None:
        self._is_in_pass = False  # whether a micro-batch is computed at present
        self.weight_at_hand = 0.0  # of the micro-batch that was computed last, or is at present
        self.last_factor: float | None = None
        self._session = session
        self._parameters = parameters
        self._reduce = reduce
        named = model.named_parameters() if model is not None else ()
        names = {id(tensor): name for name, tensor in named}
        # A GPU or the like, as lanes need it.
        self._on_one_device = len({p.device for p in parameters}) == 1 and not parameters[0].is_cpu
        self._names = [names.get(id(tensor), f"parameter {i}") for i, tensor in enumerate(parameters)]
        self._moving = running_statistics(model)
        self._sums: ExactSums | None = None
        # Weakly: who ends the process group must let go of the model, and the loader has this.
        self._reduced = weakref.ref(model) if isinstance(model, DistributedDataParallel) else lambda: None
        self._statistics = RunningStatistics(model)
        refuse_single_values(model, session.training.micro_batch)
        self._part: Slice | None = None  # that is under way, or was gone through last
        self._left = 0  # micro-batches of it that are to be begun
        self._at_once = 1
        self._idle: list[Lane] = []
        # With their weights, in the order of the cuts.
        self._under_way: deque[tuple[Lane, MicroBatch, float]] = deque()
        self._is_adding = False  # a micro-batch's results, of which an error may leave a part
        self._divisor = 0.0  # samples, or weight, that the accumulated gradient is divided by
        self._weight = 0.0  # of the slice's micro-batches so far: samples, or what they are means over
        self._zeroing: list[RemovableHandle] = []  # of the gradients of a micro-batch without weight
        self._pass_norms = PassNorms(parameters)
        self._preconditioner = preconditioner
        self._every = EVERY_OFF_CPU if self._on_one_device else 1  # iterations, of which one has norms
        if preconditioner is not None and session.training.micro_batch is not None:
            # There are norms enough, and one of each pass takes twice as long with P.
            preconditioner.every = self._every = max(2, self._every)
        self._diagonals: Sequence[torch.Tensor | None] | None = None  # of the slice; None: no norms are taken
        # One of them, by which it is seen whether the script scales the gradient that is left.
        self._marked = max((p for p in parameters if p.numel() <= _MARKED), key=torch.numel, default=None)
        self._marked_squares: torch.Tensor | float = 0.0

    @contextlib.contextmanager
    def slice(self, part: "Slice") -> Iterator[None]:
        """Sum over a slice, whose micro-batches the `with` block computes.

        Afterwards gradients and statistics have the mean over the slice; under DDP, that over the batch.

        Raises:
            InvalidRequestError: It was begun before.
        """
        self._begin(part)
        yield
        self._settle(0)
        self._end()

    def _begin(self, part: "Slice") -> None:
        if self._part is part:
            raise InvalidRequestError(
                f"the micro-batches of iteration {part.assignment.iteration} were gone through before"
            )
        self._part, self._left = part, len(part.micro_batches)
        self._divisor = self._weight = 0.0
        self._under_way.clear()
        self._is_adding = False
        self._at_once = self._session.limits.begin(part.assignment.at_once)
        self._statistics.begin()
        self._diagonals = self._diagonals_of(part.assignment.iteration)
        if self._session.synchronisation.exact:
            if self._sums is None:
                named = dict(zip(self._names, self._parameters, strict=True))
                self._sums = ExactSums(named, self._moving, self._session.weights.limit)
            self._sums.begin(part.assignment.total)

    @contextlib.contextmanager
    def micro_batch(self, part: MicroBatch) -> Iterator[None]:
        """Add a micro-batch's gradient and statistics, which the `with` block computes, loading included.

        The block may be left before a GPU has computed them. If it raises an error, nothing was added where
        several are computed at once, and it may be tried again.
        """
        reduced = self._reduced()
        lane = None
        added_to: list[tuple[torch.Tensor, torch.Tensor]] = []  # one with its gradient, if any has
        apart = self._at_once > 1 or (self._on_one_device and self._diagonals is not None)
        if apart and not self._reduces:
            self._settle(self._at_once - 1)
            lane = self._idle.pop() if self._idle else Lane(self._parameters, list(self._moving.values()))
        else:
            self._settle(0)
            if self._sums is not None:
                self._sums.clear()
            else:
                added_to = [(p, p.grad) for p in self._parameters if p.grad is not None][:1]
        with contextlib.ExitStack() as stack:
            if lane is not None:
                stack.enter_context(lane.computing())
            if reduced is not None and not self._reduces:
                stack.enter_context(reduced.no_sync())
            self._statistics.rewind()
            stack.callback(setattr, self, "_is_in_pass", False)
            self._is_in_pass = True
            stack.callback(self._end_pass)
            weigh = partial(self._weigh, accumulates=lane is None and self._sums is None)
            stack.enter_context(self._session.weights.micro_batch(part.count, weigh))
            if not self._session.weights.are_given:
                weigh(len(part.indices))
            if lane is None and self._diagonals is not None:
                self._pass_norms.begin(self._diagonals)
            yield
        self._left -= 1
        self._weight += self.weight_at_hand
        if reduced is None and any(parameter.grad is not gradient for parameter, gradient in added_to):
            raise InvalidRequestError(
                "gradients were cleared or replaced within the loop over micro-batches, which adds them up: "
                "call optimizer.zero_grad() before it"
            )
        if lane is None:
            self._add(part, self._pass_norms.take(), self.weight_at_hand)
        else:
            self._under_way.append((lane, part, self.weight_at_hand))

    @property
    def divisor(self) -> float | None:
        """Return what a micro-batch's pass leaves the gradient divided by: samples, or weight.

        That is those of the last micro-batch that has any; 0 where none has. None outside of micro-batches.
        """
        return self._divisor if self._is_in_pass else None

    def lower_at_once(self) -> bool:
        """Compute fewer micro-batches at once, since memory has run out in one.

        Returns:
            Whether there were others under way, or might have been, and none was being added: it may be tried
            again then.
        """
        if self._at_once == 1 or self._reduces or self._is_adding:
            return False
        fitted = len(self._under_way)
        self._settle(0)
        limits = self._session.limits
        limits.lower_at_once(max(1, min(fitted, self._at_once - 1)))
        self._at_once = limits.begin(limits.most_at_once)
        return True

    @property
    def _reduces(self) -> bool:
        """Return whether the next micro-batch's backward pass reduces the sum over the ranks."""
        return self._reduced() is not None and self._left == 1 and self._sums is None

    def _settle(self, most: int) -> None:
        """Add the results of the micro-batches that were begun first, until at most `most` are under way."""
        while len(self._under_way) > most:
            self._is_adding = True
            lane, part, weight = self._under_way.popleft()
            with lane.results() as gradients:
                squares = squared_norm_of(gradients, self._diagonals) if self._diagonals else 0.0
                self._add(part, squares, weight)
            if self._sums is None and weight:
                self._divide_by(weight)
                self._accumulate(gradients)
            self._idle.append(lane)
            self._is_adding = False

    def _add(self, part: MicroBatch, squares: torch.Tensor | float, weight: float) -> None:
        """Add what a micro-batch has left in gradients and buffers, as far as passes do not add it up.

        Args:
            squares: The squared norm of its gradient, where norms are taken.
            weight: Its weight.
        """
        assert self._part is not None
        weights = self._session.weights
        if self._diagonals is not None:
            given = weight if weights.are_given else None
            self._session.norms.add(self._part.assignment, part.count, squares, given)
        if self._sums is not None:
            self.check_dense()
            self._sums.add(part.count, weights.in_sums(weight) if weights.are_given else None)
        else:
            self._statistics.add(part.count)

    @torch.no_grad()
    def _accumulate(self, gradients: Sequence[torch.Tensor | None]) -> None:
        sums, added = [], []
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if parameter.grad is None:
                parameter.grad = gradient
            elif gradient is not None:
                sums.append(parameter.grad)
                added.append(gradient)
        if sums:
            torch._foreach_add_(sums, added)

    def _end(self) -> None:
        assert self._part is not None
        assignment, reduced = self._part.assignment, self._reduced()
        if self._sums is not None:
            self._sums.check()
            weight = self._session.weights.of(assignment)
            if self._reduce is None or reduced is None:
                self._sums.leave(assignment.count if weight is None else weight)
            else:
                self._reduce(self._sums.shared(weight), reduced.process_group)
                self._sums.settle()
                if self._diagonals is not None:
                    norm = squared_norm_of((p.grad for p in self._parameters), self._diagonals)
                    self._session.norms.take_reduced(assignment.iteration, norm)
            return
        if reduced is None:
            if self._weight:
                self._divide_by(self._weight)
            self._statistics.end(assignment.count)
            self._marked_squares = self._squares_of_marked() if self._diagonals is not None else 0.0
        else:
            self._session.meter.stopwatch.stop()  # it waits for the other ranks
            self._statistics.end(assignment.total, reduced.process_group)
            self._session.meter.stopwatch.start()

    def exact_sums(self) -> torch.Tensor | None:
        """Return the slice's exact sums, of gradients and then statistics, (elements,); None without such.

        Raises:
            InvalidRequestError: The script has changed the gradients since.
        """
        if self._sums is None:
            return None
        self._sums.check_left()
        return self._sums.flat

    def note_scaling(self) -> None:
        """Scale the micro-batches' norms as the script has scaled their sum since: clipped or unscaled it."""
        if self._part is None or self._marked is None or self._diagonals is None:
            return
        factor = float(self._squares_of_marked()) / before if (before := float(self._marked_squares)) else 1.0
        self._session.norms.scale(self._part.assignment.iteration, factor)

    def _squares_of_marked(self) -> torch.Tensor | float:
        return squared_norm_of([self._marked.grad if self._marked is not None else None], [None])

    def _diagonals_of(self, iteration: int) -> Sequence[torch.Tensor | None] | None:
        """Return for each parameter its preconditioner, or None; None if norms are of no use, or not yet."""
        if iteration % self._every:
            return None
        if self._preconditioner is not None:
            return self._preconditioner.of(self._parameters, iteration)
        return (None,) * len(self._parameters) if self._session.norms.of_micro_batches else None

    def check(self) -> None:
        """Check that the assignment's micro-batches have been gone through.

        Raises:
            InvalidRequestError: They have not.
        """
        now, part = self._session.assignment, self._part
        if now is None or self._session.training.micro_batch is None:
            return
        if part is None or part.assignment is not now or self._left:
            left = "all" if part is None or part.assignment is not now else self._left
            raise InvalidRequestError(
                f"{left} micro-batches of iteration {now.iteration} are left: go through them by "
                f"`for inputs, targets in evenpace.torch.micro_batches(batch)`, and call optimizer.step() "
                f"after that loop"
            )

    def check_dense(self) -> None:
        """Check that no gradient is sparse: flat arrays and exact sums have all elements.

        Raises:
            InvalidRequestError: One is.
        """
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise InvalidRequestError(
                    f"{name} has a sparse gradient, but gradients are pushed with all elements: make its "
                    f"layer with sparse=False (torch.nn.Embedding, torch.nn.EmbeddingBag), or set "
                    f"`parameter.grad = parameter.grad.to_dense()` after each backward pass"
                )

    def _weigh(self, weight: float, *, accumulates: bool) -> None:
        """Prepare for the gradient of the micro-batch at hand, whose weight is known by now.

        Args:
            accumulates: Whether its backward pass adds to the parameters' `grad`.
        """
        self.weight_at_hand = weight
        if not accumulates:
            return
        if weight:
            self._divide_by(weight)
        else:  # the gradient may be anything
            self._zeroing = [p.register_hook(torch.zeros_like) for p in self._parameters if p.requires_grad]
        whole = self._weight + weight
        if self._left == 1 and self._part is not None and whole:
            self.last_factor = self._divisor / whole

    def _end_pass(self) -> None:
        self.last_factor = None
        while self._zeroing:
            self._zeroing.pop().remove()

    def _divide_by(self, size: float) -> None:
        """Let the accumulated gradient be divided by another number of samples, or weight."""
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if gradients and self._divisor not in (0, size):
            torch._foreach_mul_(gradients, self._divisor / size)
        self._divisor = size


class SlicedBatch(sliced_batch.SlicedBatch):
    """A worker's part of a batch, which `micro_batches` goes through.

    Args:
        load: Loads a micro-batch's samples, makes a batch of them, and seeds its forward pass.
        accumulation: Takes what is summed over the micro-batches; None where that is not known yet.
    """

    def __init__(
        self, part: "Slice", load: Callable[[MicroBatch], Any], accumulation: Accumulation | None
    ) -> None:
        way = "`for inputs, targets in evenpace.torch.micro_batches(batch)`"
        super().__init__(part, load, way, seed_generators)
        self._accumulation = accumulation

    @property
    def accumulation(self) -> Accumulation:
        """What takes the sums (InvalidRequestError: the model's parameters are not known)."""
        if self._accumulation is None:
            raise InvalidRequestError(
                "the job has micro-batches, whose gradients are to be summed: call distribute(optimizer, "
                "loader, model), or balance(model, loader) without a parameter server, before the training"
            )
        return self._accumulation


def micro_batches(batch: SlicedBatch) -> Iterator[Any]:
    """Yield the micro-batches of a worker's part of a batch, for a forward and backward pass each.

        for batch in loader:
            optimizer.zero_grad()
            for inputs, targets in evenpace.torch.micro_batches(batch):
                loss_function(model(inputs), targets).backward()
            optimizer.step()

    Each loss is the mean over its micro-batch. After the loop, gradients are those of the mean over the
    slice, and the running statistics of the model that `distribute` or `balance` was given have moved once,
    by the mean of what each micro-batch would have done. In `DistributedDataParallel`, all passes but the
    last run in `no_sync`; where sums are exact, all do, and the loop leaves the gradient of the whole batch.
    The generators of PyTorch, Python and NumPy are seeded for each micro-batch, before its samples are loaded
    and before its forward pass; and for the whole batch, when the loader yields it and after the loop.

    On a GPU the manager may have several micro-batches computed at once, up to `evenpace worker --at-once`:
    what the body of the loop asks of the GPU then runs on a stream of its own, beside other micro-batches. A
    body that waits for its result (`loss.item()`) has them run in turn. It must not carry a tensor from one
    micro-batch to the next: collect losses in a list, and sum them up after the loop.

    Args:
        batch: What the loader of a job with micro-batches yields.

    Raises:
        InvalidRequestError: The batch is not one of such a job, or was gone through before; or the loader was
            not given to `distribute` or `balance` before it.
    """
    if not isinstance(batch, SlicedBatch):
        raise InvalidRequestError(
            f"micro_batches of a {type(batch).__name__}: make the loader with micro_batch=, "
            f"and give what it yields"
        )
    with batch.accumulation.slice(batch.part):
        for part in batch.micro_batches():
            with batch.accumulation.micro_batch(part):
                yield batch.load(part)
