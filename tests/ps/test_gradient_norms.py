"""The norms of gradients that a shard takes as they pass: those of the gradients themselves."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.exact_sums import FixedPoint
from idl.gradient_norms import GradientNorms, StepNorms
from idl.layout import Group, Layout
from ps.asynchronous_shard import AsynchronousShard
from ps.backup_shard import BackupShard
from ps.exact_shard import ExactShard
from ps.optimizers import DTYPES
from ps.shard import GradientSink, Shard
from tests.ps.tensors import plain_sgd, push, send, slice_of, slices, tensor, wire


def gradients_of(counts, elements, seed=0, dtype=torch.float64):
    """A mean gradient for each count, (elements,)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, dtype=dtype, generator=generator) + 1 for _ in counts]


def norms_of(counts, gradients):
    """The norms worked out from the gradients at once."""
    total = sum(counts)
    mean = sum(count * gradient.double() for count, gradient in zip(counts, gradients, strict=True)) / total
    each = [(count, float(g.double().square().sum())) for count, g in zip(counts, gradients, strict=True)]
    return GradientNorms.of(each, float(mean.square().sum()))


def assert_close(found, expected, rel=1e-9):
    """Check that norms are the same but for rounding."""
    assert (found.contributions, found.samples) == (expected.contributions, expected.samples)
    assert found.weighted == pytest.approx(expected.weighted, rel=rel)
    assert found.squared == pytest.approx(expected.squared, rel=rel)


@pytest.mark.parametrize("deterministic", [False, True])
@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 2**32))
def test_the_norms_are_those_of_the_contributions_and_of_their_mean(deterministic, counts, elements, seed):
    """However uneven the slices are; they are known once the step is taken, and of its iteration."""
    gradients = gradients_of(counts, elements, seed)
    shard = plain_sgd(elements, deterministic=deterministic)
    for (start, count), gradient in zip(slices(counts), gradients, strict=True):
        push(shard, start, count, sum(counts), gradient, [3, 1])
    assert shard.norms is None
    shard.step()
    assert shard.norms.iteration == 0
    assert_close(shard.norms.norms, norms_of(counts, gradients))


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(2, 40), st.integers(1, 39))
def test_the_sum_over_shards_is_that_of_the_whole(counts, elements, cut):
    """Each shard has the norms over its own elements."""
    cut = min(cut, elements - 1)
    gradients = gradients_of(counts, elements)
    shards = [plain_sgd(cut), plain_sgd(elements - cut)]
    for (start, count), gradient in zip(slices(counts), gradients, strict=True):
        push(shards[0], start, count, sum(counts), gradient[:cut])
        push(shards[1], start, count, sum(counts), gradient[cut:])
    for shard in shards:
        shard.step()
    whole = StepNorms.summed([shard.norms for shard in shards])
    assert_close(whole.norms, norms_of(counts, gradients))


def test_norms_of_millions_of_float32_are_right():
    """Added up one by one, squares would be lost beside their sum: it would be too small by a thousandth."""
    elements = 5_000_000
    gradients = gradients_of((1, 3), elements, dtype=torch.float32)
    shard = plain_sgd(elements, "float32")
    push(shard, 0, 1, 4, gradients[0])
    push(shard, 1, 3, 4, gradients[1])
    shard.step()
    assert_close(shard.norms.norms, norms_of((1, 3), gradients), rel=1e-5)


def test_statistics_are_left_out():
    """They are values, not gradients; here in the middle, in the same piece, and far larger."""
    groups = (Group(3, {"lr": 1.0}), Group(4, {}, statistics=True), Group(2, {"lr": 1.0}))
    shard = Shard(Layout("float64", "sgd", groups))
    shard.initialise(torch.zeros(9, dtype=DTYPES["float64"]), 0)
    gradients = gradients_of((2, 5), 9)
    for gradient in gradients:
        gradient[3:7] = 1e9
    push(shard, 0, 2, 7, gradients[0], [16, 24, 8])
    push(shard, 2, 5, 7, gradients[1])
    shard.step()
    kept = [torch.cat((gradient[:3], gradient[7:])) for gradient in gradients]
    assert_close(shard.norms.norms, norms_of((2, 5), kept))


def test_a_slice_that_others_redo_counts_as_their_contributions():
    """The noise follows from any division of the batch."""
    gradients = gradients_of((4, 1, 2), 6)
    shard = plain_sgd(6)
    lost = GradientSink(shard, shard.begin(slice_of(0, 4, 3, 7)))
    lost.abort()
    for (start, count), gradient in zip(((0, 4), (4, 1), (5, 2)), gradients, strict=True):
        push(shard, start, count, 7, gradient)
    shard.step()
    assert_close(shard.norms.norms, norms_of((4, 1, 2), gradients))


def test_a_push_that_broke_off_and_came_again_in_pieces_leaves_no_norms():
    """Its first elements are of one gradient, the others of two: there is no number of contributions."""
    elements = 40_000  # more than one of the pieces in which a shard adds
    gradient = gradients_of((1,), elements)[0]
    shard = plain_sgd(elements)
    push(shard, 0, 4, 7, gradient)
    broken = GradientSink(shard, shard.begin(slice_of(0, 4, 3, 7)))
    send(broken, wire(gradient)[: 8 * (elements - 1)])
    broken.abort()
    push(shard, 4, 1, 7, gradient)
    push(shard, 5, 2, 7, gradient)
    shard.step()
    assert shard.version == 1
    assert shard.norms is None


def test_norms_are_of_the_last_step_alone():
    """A step whose norms cannot be had does not show those of the one before."""
    shard = plain_sgd(2)
    push(shard, 0, 4, 4, tensor(1, 2))
    shard.step()
    assert shard.norms is not None
    push(shard, 0, 4, 4, tensor(float("nan"), 2))
    shard.step()
    assert shard.norms is None


def test_backup_has_those_of_the_gradients_that_were_used():
    """Late ones leave no trace."""
    layout = Layout("float64", "sgd", (Group(3, {"lr": 1.0}),))
    shard = BackupShard(layout, replicas_to_aggregate=2)
    shard.initialise(torch.zeros(3, dtype=DTYPES["float64"]), 0)
    gradients = gradients_of((2, 3), 3)
    push(shard, 0, 2, 9, gradients[0])
    push(shard, 2, 3, 9, gradients[1])
    shard.step()
    assert_close(shard.norms.norms, norms_of((2, 3), gradients))


def test_asynchronous_shards_have_none():
    """Each of their steps has one gradient, at parameters of its own."""
    shard = AsynchronousShard(Layout("float64", "sgd", (Group(3, {"lr": 1.0}),)))
    shard.initialise(torch.zeros(3, dtype=DTYPES["float64"]), 0)
    push(shard, 0, 2, 9, tensor(1, 2, 3), worker="w")
    shard.step()
    assert shard.norms is None


def test_exact_sums_have_those_of_the_means_that_they_stand_for():
    """Integers of fixed point are turned back into numbers, within their unit."""
    counts, layout = (4, 8), Layout("float64", "sgd", (Group(5, {"lr": 1.0}),))
    shard = ExactShard(layout)
    shard.initialise(torch.zeros(5, dtype=DTYPES["float64"]), 0)
    gradients = gradients_of(counts, 5)
    for (start, count), gradient in zip(slices(counts), gradients, strict=True):
        sums = torch.zeros(5, dtype=torch.int64)
        FixedPoint(12).add(sums.numpy(), gradient.numpy(), count)
        push(shard, start, count, 12, sums)
    shard.step()
    assert_close(shard.norms.norms, norms_of(counts, gradients), rel=1e-8)
