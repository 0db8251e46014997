"""Slices are known by their place: whichever worker sends them, however often, each sample counts once."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.errors import InvalidRequestError, UnavailableError
from idl.layout import Group, Layout
from ps.asynchronous_shard import AsynchronousShard
from ps.parameters import Contribution
from ps.shard import GradientSink, Shard
from tests.ps.tensors import plain_sgd, push, slice_of, tensor, values

ELEMENTS = 7
ACTION = st.tuples(
    st.sampled_from(["begin", "begin", "go on", "go on", "break", "again", "in part", "drop"]),
    st.integers(0, 99),
    st.integers(1, ELEMENTS),
)


@dataclasses.dataclass(eq=False)
class Brought:
    """A push that is in progress."""

    contribution: Contribution
    gradient: torch.Tensor
    repeated: bool  # another worker has the slice, or parts of it, to push as well


class Redone:
    """One batch at a shard, whose slices break off, are divided otherwise, and arrive repeatedly.

    Args:
        weigh: Returns what a slice's gradient is a mean over; None for the samples.
    """

    def __init__(self, shard, samples, start, counts, says_batch_start, weigh=lambda: None):
        self.shard = shard
        self.samples = samples  # (total, elements)
        self.start = start
        self.batch_start = start if says_batch_start else None
        self.parts = [(start + sum(counts[:i]), count) for i, count in enumerate(counts)]
        self.given_out = list(self.parts)
        self.todo = list(self.parts)
        self.under_way = []
        self.stale = []
        self.weigh = weigh
        self.brought = {}  # by contribution's id, its gradient

    def begin(self, place, repeated=False):
        """Begin to push a slice, unless others have; what another was pushing of it is given out again."""
        if self.shard.has_used(slice_of(self.shard.version, *place)):
            return
        start, count = place
        try:
            slice_ = slice_of(self.shard.version, start, count, len(self.samples), self.batch_start)
            contribution = self.shard.begin(slice_, "w", weight=self.weigh())
        except UnavailableError:
            if not repeated:
                self.todo.append(place)
            return
        for other in [one for one in self.under_way if not one.contribution.open]:
            self.under_way.remove(other)
            self.stale.append(other)
            if not other.repeated:
                first, end = other.contribution.start, other.contribution.end
                rest = ((first, start - first), place, (start + count, end - start - count))
                pieces = [piece for piece in rest if piece[1]]
                self.given_out += pieces
                self.todo += pieces
        within = start - self.start
        gradient = self.gradient(self.samples[within : within + count])
        if contribution.weight == 0:
            gradient[:-2] = math.nan
        self.brought[id(contribution)] = gradient
        self.under_way.append(Brought(contribution, gradient, repeated))

    def gradient(self, samples):
        """Return what is pushed for samples of the batch, (elements,)."""
        return samples.mean(dim=0)

    def go_on(self, brought, n):
        """Push the next elements."""
        contribution = brought.contribution
        self.shard.add(contribution, brought.gradient[contribution.done : contribution.done + n])
        if contribution.done == ELEMENTS:
            contribution.open = False
            self.under_way.remove(brought)

    def break_off(self, brought, cut):
        """Break a push off; its slice is assigned again, in two parts if `cut` lies within."""
        self.under_way.remove(brought)
        self.shard.interrupt(brought.contribution)
        if brought.repeated:
            return
        start, count = brought.contribution.start, brought.contribution.count
        cut %= count
        pieces = [(start, cut), (start + cut, count - cut)] if cut else [(start, count)]
        self.given_out += pieces
        self.todo += pieces

    def drop(self):
        """Drop all gradients, as another attempt does; pushes in progress still send elements."""
        self.shard.drop()
        self.stale += self.under_way
        self.given_out, self.todo, self.under_way = list(self.parts), list(self.parts), []

    def finish(self):
        """Push everything that is left."""
        while self.under_way:
            self.go_on(self.under_way[0], ELEMENTS)
        while self.todo:
            self.begin(self.todo.pop())
            while self.under_way:
                self.go_on(self.under_way[0], ELEMENTS)

    def play(self, actions):
        """Do (what, which of those that it may be done to, a number), one after the other; then finish."""
        for what, which, n in actions:
            if what == "begin" and self.todo:
                self.begin(self.todo.pop(which % len(self.todo)))
            elif what == "go on" and self.under_way:
                self.go_on(self.under_way[which % len(self.under_way)], n)
            elif what == "break" and self.under_way:
                self.break_off(self.under_way[which % len(self.under_way)], n)
            elif what == "again":
                self.begin(self.given_out[which % len(self.given_out)], repeated=True)
            elif what == "in part":
                self.shard.step_in_part()
            elif what == "drop" and which < 20:
                self.drop()
        self.finish()

    def push_stale(self):
        """Push elements of a contribution that was dropped."""
        for stale in self.stale:
            self.shard.add(stale.contribution, stale.gradient)
            self.shard.interrupt(stale.contribution)


@pytest.mark.parametrize("says_batch_start", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_each_sample_counts_once(deterministic, says_batch_start, data):
    """Pushes in any order, breaks, pieces, repeats and attempts make one big batch's step and statistics."""
    groups = (Group(ELEMENTS - 2, {"lr": 0.5, "momentum": 0.9}), Group(2, {}, statistics=True))
    shard = Shard(Layout("float64", "sgd", groups), deterministic)
    shard.initialise(torch.zeros(ELEMENTS, dtype=torch.float64), 0)
    expected = torch.zeros(ELEMENTS - 2, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.SGD([expected], lr=0.5, momentum=0.9)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    start = 0
    for version in range(1, 3):
        counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4), label="counts")
        samples = torch.randn(sum(counts), ELEMENTS, dtype=torch.float64, generator=generator)
        batch = Redone(shard, samples, start, counts, says_batch_start)
        batch.play(data.draw(st.lists(ACTION, max_size=40), label="actions"))
        assert shard.is_complete
        shard.step()
        batch.push_stale()
        whole = [c for c in shard.used if c.done == ELEMENTS]
        assert sum(c.count for c in whole) == len(samples)
        mean = samples.mean(dim=0)
        expected.grad = mean[:-2]
        reference.step()
        whole_batch = torch.cat([expected.detach(), mean[-2:]])
        torch.testing.assert_close(values(shard), whole_batch, rtol=1e-12, atol=1e-13)
        assert (shard.version, shard.is_complete) == (version, False)
        assert all(shard.has_used(slice_of(version - 1, *place)) for place in batch.given_out)
        start += len(samples)


@pytest.mark.parametrize("deterministic", [False, True])
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_each_gradient_counts_by_its_weight(deterministic, data):
    """Each element is a mean by the weights of those that brought it, whatever was broken off and redone."""
    groups = (Group(ELEMENTS - 2, {"lr": 0.5, "momentum": 0.9}), Group(2, {}, statistics=True))
    shard = Shard(Layout("float64", "sgd", groups), deterministic)
    shard.initialise(torch.zeros(ELEMENTS, dtype=torch.float64), 0)
    expected = torch.zeros(ELEMENTS - 2, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.SGD([expected], lr=0.5, momentum=0.9)
    weights = st.sampled_from([0.0, 0.25, 1.0, 7.0, 300.0])
    start = 0
    for _ in range(2):
        counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4), label="counts")
        samples = torch.randn(sum(counts), ELEMENTS, dtype=torch.float64)
        batch = Redone(shard, samples, start, counts, True, lambda: data.draw(weights, label="weight"))
        batch.play(data.draw(st.lists(ACTION, max_size=40), label="actions"))
        shard.step()
        used = [(one, batch.brought[id(one)].nan_to_num()) for one in shard.used]
        mean = torch.zeros(ELEMENTS, dtype=torch.float64)
        for element in range(ELEMENTS):
            parts = [(one, gradient) for one, gradient in used if one.first <= element < one.done]
            masses = [one.count if element >= ELEMENTS - 2 else one.weight for one, _ in parts]
            total = sum(mass * gradient[element] for mass, (_, gradient) in zip(masses, parts, strict=True))
            mean[element] = total / (sum(masses) or 1)
        expected.grad = mean[:-2]
        reference.step()
        whole_batch = torch.cat([expected.detach(), mean[-2:]])
        torch.testing.assert_close(values(shard), whole_batch, rtol=1e-12, atol=1e-12)
        start += len(samples)


def test_a_gradient_without_a_weight_among_others_is_refused():
    """Gradients of one step are means over tokens, or over samples; the error names who says which."""
    shard = plain_sgd(1)
    shard.begin(slice_of(0, 0, 4, 8), "one", weight=9.0)
    with pytest.raises(InvalidRequestError, match=r"'one' says what .* and 'two' does not"):
        shard.begin(slice_of(0, 4, 4, 8), "two")


def test_a_gradient_of_nothing_is_no_step_of_its_own():
    """Where each gradient is a step, one without weight changes neither parameters nor momentum."""
    layout = Layout("float64", "sgd", (Group(2, {"lr": 1.0, "momentum": 0.5}),))
    shard = AsynchronousShard(layout)
    shard.initialise(torch.zeros(2, dtype=torch.float64), 0)
    for iteration, weight in enumerate((7.0, 0.0, 3.0)):
        value = 1.0 if weight else math.nan
        contribution = shard.begin(slice_of(iteration, 8 * iteration, 8), "w", weight=weight)
        shard.add(contribution, torch.full((2,), value, dtype=torch.float64))
        assert shard.is_complete
        shard.step()
        assert shard.version == iteration + 1
        assert shard.has_used(slice_of(iteration, 8 * iteration, 8), "w")
    assert values(shard).tolist() == [-2.5, -2.5]  # steps of 1 and 1.5


def test_a_push_that_brought_nothing_leaves_nothing():
    """A slice of which no element arrived does not fix its borders or its batch."""
    shard = plain_sgd(1)
    sink = GradientSink(shard, shard.begin(slice_of(0, 0, 5, 8, batch_start=0)))
    sink.abort()
    push(shard, 3, 4, 9, tensor(1))
    push(shard, 7, 5, 9, tensor(1))
    assert shard.is_complete


def test_the_batchs_place_is_kept_to():
    """A slice outside the batch, or of a batch that begins elsewhere, is refused with both places."""
    shard = plain_sgd(1)
    shard.begin(slice_of(0, 10, 2, 8, batch_start=8))
    for start, said in ((6, "slice 6 to 8"), (15, "slice 15 to 17")):
        for batch_start in (8, None):
            with pytest.raises(InvalidRequestError, match=f"{said} is not within the batch, 8 to 16"):
                shard.begin(slice_of(0, start, 2, 8, batch_start=batch_start))
    with pytest.raises(InvalidRequestError, match=r"begins at 10 of epoch 0, .* at 8 of epoch 0"):
        shard.begin(slice_of(0, 12, 2, 8, batch_start=10))
    shard.begin(slice_of(0, 14, 2, 8, batch_start=8))


def test_a_batch_follows_the_last():
    """A batch that begins elsewhere than where the last has ended, or an epoch begins, is refused."""
    shard = plain_sgd(1)
    for start, count in ((8, 8), (16, 4)):
        contribution = shard.begin(slice_of(shard.version, start, count, batch_start=start))
        shard.add(contribution, torch.ones(1, dtype=torch.float64))
        shard.step()
    assert shard.place == (0, 20)
    for start in (0, 16, 24):
        with pytest.raises(
            InvalidRequestError, match=f"begins at {start} of epoch 0, .* ended at 20 of epoch 0"
        ):
            shard.begin(slice_of(2, start, 4, batch_start=start))
    for place in ((0, 20), (1, 0)):
        part = dataclasses.replace(slice_of(2, place[1], 4, batch_start=place[1]), epoch=place[0])
        shard.interrupt(shard.begin(part))
