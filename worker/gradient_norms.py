"""A worker's part in measuring the gradient noise: the norms that it tells the manager with its reports.

It knows those of its own contributions, a slice's or each micro-batch's, or learns those of all from the
shards. `idl.noise_estimate` has what follows from the norms. This module knows no framework and no wire.

Where the shards' optimiser is Adam or of its kin, gradients are preconditioned (`idl.preconditioning`) by
its second moment, which the shards have and the workers do not. There the slices are the contributions, whose
norms the shards take, and those of micro-batches are not taken: of preconditioners of the workers' own, which
differ from each other, norms could not be summed. To fetch the shards' would be a pull of the whole size.
"""

import contextlib
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
from numpy.typing import NDArray

from idl.gradient_norms import GradientNorms, StepNorms
from idl.layout import Layout
from idl.plan import Assignment
from idl.preconditioning import PRECONDITIONED, STEPS
from rpc.field_log import FieldLog
from worker.second_moment import SecondMoment

log = FieldLog(__name__)

_PIECE = 2**16  # elements: sums of float32 over millions of them are too small by a thousandth
_SMALL = 2**17  # elements, of which a gradient's norms take well below a millisecond
_SHARE = 0.0025  # of the time of the iterations, that norms may take
_LEVELS = (1, *(STEPS << doubled for doubled in range(5)))
_ENOUGH = 3  # iterations that are timed before the first choice


def squared_norm(
    gradient: NDArray[Any],
    layout: Layout,
    minus: NDArray[Any] | None = None,
    diagonal: NDArray[Any] | None = None,
) -> float:
    """Return the squared norm of a flat gradient, (elements,), or of its difference from another one.

    Groups of statistics are left out.

    Args:
        minus: The other one; None for none.
        diagonal: A preconditioner, (elements,), that both are multiplied by; None for none.
    """
    total = 0.0
    for begin, end, group in layout.ranges:
        for first in range(begin, end, _PIECE) if not group.statistics else ():
            place = slice(first, min(first + _PIECE, end))
            piece = gradient[place] if minus is None else gradient[place] - minus[place]
            if diagonal is not None:
                piece = piece * diagonal[place]
            total += float(np.dot(piece, piece))
    return total


class _Gradient(NamedTuple):
    """A worker's gradient for its slice, a copy."""

    part: Assignment
    values: NDArray[Any]


class _Contribution(NamedTuple):
    """A contribution of this worker's: the mean gradient of a slice or a micro-batch."""

    samples: int
    squares: SupportsFloat | None  # its squared norm; None where that is unknown
    weight: float | None  # what it is a mean over, where that is not samples


class Cadence:
    """The iterations in which norms are taken: as many as there are, or as take 0.25% of the time.

    They are every one, or every 10th, 20th, 40th, 80th or 160th. So a worker takes them in none in which
    another one that takes them more often does not, and the manager learns those of all workers; and a
    preconditioner, which is computed again every `STEPS` iterations, is the same on all of them then.

    Args:
        elements: Of the gradient. The norms of a small one are taken in every iteration.
        clock: Returns seconds.
    """

    def __init__(self, elements: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._is_small = elements <= _SMALL
        self.every = 1 if self._is_small else STEPS  # number of iterations of which one has norms
        self._iterations: deque[float] = deque(maxlen=STEPS)  # seconds of each
        self._norms: deque[float] = deque(maxlen=STEPS)
        self._preparations: deque[float] = deque(maxlen=STEPS)
        self._spent: dict[int, float] = {}  # by iteration, seconds
        self._ended: tuple[int, float] | None = None

    def is_due(self, iteration: int, successive: int = 1) -> bool:
        """Return whether norms are taken in an iteration.

        Args:
            iteration: The iteration.
            successive: Number of successive iterations that are needed at a time.
        """
        return iteration % self.every < successive

    @contextlib.contextmanager
    def taking(self, iteration: int) -> Iterator[None]:
        """Count the time of a `with` block as spent on an iteration's norms; called by any thread."""
        begun = self._clock()
        yield
        self._spent[iteration] = self._spent.get(iteration, 0.0) + self._clock() - begun

    @contextlib.contextmanager
    def preparing(self) -> Iterator[None]:
        """Count the time of a `with` block as spent on a preconditioner for `STEPS` iterations."""
        begun = self._clock()
        yield
        self._preparations.append(self._clock() - begun)

    def end(self, iteration: int) -> None:
        """Note that this worker has computed its gradient, and choose how often norms are taken."""
        now = self._clock()
        before, self._ended = self._ended, (iteration, now)
        norms = None if before is None else self._spent.pop(before[0], None)  # with those of the workers' sum
        if self._is_small or before is None or before[0] + 1 != iteration:
            return
        self._iterations.append(now - before[1])
        if norms is None:
            return
        self._norms.append(norms)
        if len(self._norms) >= _ENOUGH:
            allowed = _SHARE * statistics.median(self._iterations)
            each = statistics.median(self._norms)
            prepared = statistics.median(self._preparations or [0.0])
            fitting = (n for n in _LEVELS if each / n + prepared / max(n, STEPS) <= allowed)
            self.every = next(fitting, _LEVELS[-1])


class OwnNorms:
    """The norms of one worker's gradients; numbers may be tensors that a GPU has still to compute.

    A step's own norm, |g|², is known once its gradients are summed: after an all-reduce in the same
    iteration, from the parameter server in the next. With those of this worker's own contributions it makes a
    part of the step's norms, to which the manager joins the other workers' parts.

    Args:
        log: A logger whose fields all log lines get.

    Attributes:
        not_finite: The last iteration for which this worker's own gradient was found to have a NaN or an
            infinity, since `take_not_finite`; None if none was.
    """

    def __init__(self, log: FieldLog = log) -> None:
        self.of_micro_batches = True  # whether norms of micro-batches are of use; if not, `add` does nothing
        self.not_finite: int | None = None
        self._log = log.of(__name__)
        self._has_warned = False
        self._own: dict[int, list[_Contribution]] = {}  # by iteration: the last two
        self._attempt = 0
        self._told: StepNorms | None = None
        self._reduced: list[tuple[int, SupportsFloat]] = []
        self._pair: tuple[Assignment, Assignment, Sequence[SupportsFloat]] | None = None
        self._last: _Gradient | None = None  # the first of two that this worker alone has made
        self._moment: SecondMoment | None = None  # of the gradients that this worker alone has made

    def open(self, layout: Layout) -> None:
        """Take the layout of the parameters at the shards, with their optimiser."""
        self.of_micro_batches = layout.optimizer not in PRECONDITIONED

    def add(
        self,
        part: Assignment,
        count: int,
        squares: SupportsFloat,
        weight: float | None = None,
        *,
        once: bool = False,
    ) -> None:
        """Add a contribution: the squared norm of the mean gradient over `count` samples of a slice.

        Args:
            part: The slice.
            count: The samples; with 0, nothing is added.
            squares: The squared norm.
            weight: What the gradient is a mean over, where that is not samples; with 0, the norm may be
                anything.
            once: Whether the slice has one contribution only; another makes its norms unknown.
        """
        if part.attempt != self._attempt:
            self._attempt = part.attempt
            self._own.clear()
        if not count or not self.of_micro_batches:
            return
        for iteration in [one for one in self._own if one < part.iteration - 1]:
            del self._own[iteration]
        own = self._own.setdefault(part.iteration, [])
        own.append(_Contribution(count, None if once and own else squares if weight != 0 else 0.0, weight))

    def scale(self, iteration: int, factor: SupportsFloat) -> None:
        """Multiply the squared norms of an iteration, whose gradient was scaled after they were taken."""
        own = self._own.get(iteration, ())
        self._own[iteration] = [
            one if one.squares is None else one._replace(squares=one.squares * factor)  # type: ignore[operator]
            for one in own
        ]

    def take_all(self, step: StepNorms | None) -> None:
        """Take the norms of a step at the shards; finer ones, of this worker's own, take precedence."""
        if step is not None:
            own = self._own.pop(step.iteration, None)
            self._told = self._part(step.iteration, own, step.norms.squared) if own else step

    def take_gradient(self, part: Assignment, gradient: NDArray[Any], layout: Layout) -> None:
        """Take the gradient that was pushed for a slice, (elements,), after `take_all`.

        Where the last step had no other contribution, gradients are compared in pairs of successive
        iterations (Pollux, section 3.1); what their true gradients differ by counts as noise. Where they are
        preconditioned, it is by the gradients that this worker has made alone, before the pair.
        """
        alone = self._told is not None and self._told.norms.contributions == 1
        last, self._last = self._last, None
        if not alone or part.count < part.total or gradient.dtype.kind != "f":
            self._moment = None
            return
        if last is None or (last.part.attempt, last.part.iteration + 1) != (part.attempt, part.iteration):
            self._last = _Gradient(part, gradient.copy())
            return
        diagonal = None
        if layout.optimizer in PRECONDITIONED:
            if any(group.options.get("amsgrad") for group in layout.groups):
                return
            if self._moment is None:
                self._moment = SecondMoment(layout, gradient.dtype)
            diagonal = self._moment.diagonal()
            self._moment.add(last.values)
            self._moment.add(gradient)
            if diagonal is None:
                return
        norms = (squared_norm(one, layout, diagonal=diagonal) for one in (last.values, gradient))
        difference = squared_norm(gradient, layout, minus=last.values, diagonal=diagonal)
        self.take_pair(last.part, part, (*norms, difference))

    def take_reduced(self, iteration: int, squares: SupportsFloat) -> None:
        """Take the squared norm of a part of an iteration's gradient, summed over all workers.

        May be called from any thread.
        """
        self._reduced.append((iteration, squares))

    def take_pair(self, first: Assignment, second: Assignment, squares: Sequence[SupportsFloat]) -> None:
        """Take the norms of two successive gradients, each of the whole batch (Pollux, section 3.1).

        Args:
            first: The slice of the first.
            second: That of the second.
            squares: Squared norms of the first, of the second, and of their difference.
        """
        self._pair = first, second, squares

    def take(self) -> StepNorms | None:
        """Return what was learned since the last call; None where nothing was, or a number is not finite."""
        told, self._told = self._told, None
        if self._pair is not None:
            (first, second, squares), self._pair = self._pair, None
            before, after, difference = map(float, squares)
            for part, norm in ((first, before), (second, after)):
                if not math.isfinite(norm):
                    self.not_finite = part.iteration
            norms = GradientNorms.of_consecutive((first.count, before), (second.count, after), difference)
            told = StepNorms(second.iteration, norms)
        if self._reduced:
            parts, self._reduced = self._reduced, []
            iteration = parts[-1][0]
            own = self._own.pop(iteration, None)
            squared = sum(float(squares) for of, squares in parts if of == iteration)
            told = self._part(iteration, own, squared) if own else None
        return told if told is not None and told.norms.is_finite else None

    def take_not_finite(self) -> int | None:
        """Return `not_finite`, and forget it; the first one is logged as a warning."""
        found, self.not_finite = self.not_finite, None
        if found is not None and not self._has_warned:
            self._has_warned = True
            self._log.warning(
                "this worker's gradient for iteration %d has a NaN or an infinity; unless a GradScaler skips "
                "the step, so have the parameters after it. The manager's log names who was the first",
                found,
            )
        return found

    def _part(self, iteration: int, own: list["_Contribution"], squared: float) -> StepNorms | None:
        contributions = [(one.samples, float(one.squares)) for one in own if one.squares is not None]
        weights = [one.weight for one in own if one.weight is not None]
        if not all(math.isfinite(squares) for _, squares in contributions):
            self.not_finite = iteration
        if len(contributions) < len(own):
            return None
        return StepNorms(iteration, GradientNorms.of(contributions, squared, weights or None))
