"""Plans: slices that tile a batch, batches that tile an epoch, and an order that never changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.plan import JobSpec, make_plan, permutation

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


@st.composite
def specs(draw):
    """Draw a job of at most 200 samples."""
    size = draw(st.integers(1, 200))
    return JobSpec(
        dataset_size=size,
        total_batch_size=draw(st.integers(1, size)),
        seed=draw(st.integers(0, 2**63 - 1)),
        shuffle=draw(st.booleans()),
        drop_last=draw(st.booleans()),
    )


def mix(z):
    """Mix 64 bits as the IDL writes it, in Python's integers."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(0, 100),
    st.integers(0, 10**9),
    st.dictionaries(st.text(max_size=3), st.integers(0, 1000), min_size=1, max_size=8),
)
def test_slices_tile_the_batch(iteration, epoch, start, counts):
    """Slices follow each other in the workers' order and sum to the total."""
    plan = make_plan(iteration, epoch, start, counts)

    assert (plan.iteration, plan.epoch, plan.start) == (iteration, epoch, start)
    assert list(plan.assignments) == list(counts)
    position = start
    for name, assignment in plan.assignments.items():
        assert (assignment.iteration, assignment.epoch) == (iteration, epoch)
        assert (assignment.start, assignment.count) == (position, counts[name])
        assert assignment.total == plan.total
        position += assignment.count
    assert position - start == plan.total == sum(counts.values())


@settings(deadline=None)
@given(specs(), st.integers(0, 5))
def test_batches_cover_an_epoch_exactly_once(spec, epoch):
    """An epoch's batches hold each position once; with drop_last all are whole."""
    first = epoch * spec.iterations_per_epoch
    batches = [spec.batch(first + i) for i in range(spec.iterations_per_epoch)]

    assert {e for e, _, _ in batches} == {epoch}
    covered = [p for _, start, size in batches for p in range(start, start + size)]
    dropped = spec.dataset_size % spec.total_batch_size if spec.drop_last else 0
    assert covered == list(range(spec.dataset_size - dropped))
    assert all(size == spec.total_batch_size for _, _, size in batches[:-1])
    assert 1 <= batches[-1][2] <= spec.total_batch_size
    assert spec.batch(first + spec.iterations_per_epoch)[:2] == (epoch + 1, 0)


@settings(deadline=None)
@given(specs(), st.integers(0, 2**40))
def test_permutation_is_what_the_idl_defines(spec, epoch):
    """The order is the IDL's, worked out number by number from seed, epoch and size, or that of the data."""
    base = mix(mix(spec.seed + GOLDEN & MASK) + epoch + GOLDEN & MASK)
    keys = [(mix(base + (i + 1) * GOLDEN & MASK), i) for i in range(spec.dataset_size)]
    order = permutation(spec, epoch)

    assert order.dtype == np.int64
    assert order.tolist() == (
        [i for _, i in sorted(keys)] if spec.shuffle else list(range(spec.dataset_size))
    )


def test_permutation_has_the_values_it_always_had():
    """Orders for known seeds do not change, since resumed runs rely on them."""
    assert permutation(JobSpec(10, 5, seed=42), 1).tolist() == [8, 0, 3, 7, 1, 4, 2, 9, 6, 5]
    assert permutation(JobSpec(10, 5, seed=2**63 - 1), 7).tolist() == [3, 2, 0, 6, 7, 1, 9, 8, 5, 4]
