"""A shard that sums in fixed point: however gradients arrive, its parameters are the same to the last bit."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.exact_sums import add_to, mean_of
from idl.layout import Group, Layout
from ps.exact_shard import ExactShard
from tests.ps.tensors import values
from tests.ps.test_shard_slices import ACTION, ELEMENTS, Redone

LAYOUT = Layout(
    "float32",
    "sgd",
    (Group(ELEMENTS - 2, {"lr": 0.5, "momentum": 0.9}), Group(2, {}, statistics=True)),
)


class RedoneExactly(Redone):
    """A batch whose slices bring sums in fixed point of their samples."""

    def gradient(self, samples):
        """Return the sums over samples, (elements,), in an order of their own."""
        sums = np.zeros(ELEMENTS, dtype=np.int64)
        for sample in samples.flip(0).numpy():
            add_to(sums, sample, 1, len(self.samples), LAYOUT)
        return torch.from_numpy(sums)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_pushes_breaks_and_pieces_leave_no_trace(data):
    """Parameters have the bits of a step with the whole batch's mean, whatever happened to the pushes."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    shard = ExactShard(LAYOUT)
    first = torch.randn(ELEMENTS, generator=generator)
    shard.initialise(first.clone(), 0)
    expected = first[:-2].clone().requires_grad_()
    reference = torch.optim.SGD([expected], lr=0.5, momentum=0.9)
    start = 0
    for _ in range(2):
        counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4), label="counts")
        samples = torch.randn(sum(counts), ELEMENTS, generator=generator)
        batch = RedoneExactly(shard, samples, start, counts, says_batch_start=True)
        batch.play(data.draw(st.lists(ACTION, max_size=40), label="actions"))
        assert shard.is_complete
        shard.step()
        batch.push_stale()
        sums = np.zeros(ELEMENTS, dtype=np.int64)
        for sample in samples.numpy():
            add_to(sums, sample, 1, len(samples), LAYOUT)
        mean = torch.from_numpy(mean_of(sums, len(samples), LAYOUT)).float()
        expected.grad = mean[:-2]
        reference.step()
        assert values(shard).tolist() == [*expected.tolist(), *mean[-2:].tolist()]
        start += len(samples)


# -- on the wire
