"""The micro-batches of slices, and the seeds of their random numbers."""

import struct
from hashlib import blake2b
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from idl.plan import JobSpec, make_plan, permutation
from worker.data.micro_batches import Draws, batch_seed, micro_batches_of


@st.composite
def batches(draw):
    """Draw a job, an epoch of it, one of its batches as (start, total), and the workers' counts there."""
    size = draw(st.integers(1, 12))
    total = draw(st.integers(size, 80))
    spec = JobSpec(draw(st.integers(total, 200)), total, draw(st.integers(0, 2**63 - 1)), micro_batch=size)
    iteration = draw(st.integers(0, 3 * spec.iterations_per_epoch))
    epoch, start, total = spec.batch(iteration)
    cuts = spec.cuts(total)
    inner = draw(st.lists(st.integers(0, len(cuts)), max_size=7).map(sorted))
    positions = [cuts.position(index) for index in (0, *inner, len(cuts))]
    counts = [stop - first for first, stop in pairwise(positions)]
    return spec, make_plan(iteration, epoch, start, dict(zip("abcdefgh", counts, strict=False)))


def described(parts):
    """What a micro-batch is computed from, for each that has a weight."""
    return [
        (part.position, part.indices.tolist(), part.seed(Draws.LOADING), part.seed(Draws.COMPUTING))
        for part in parts
        if part.count
    ]


@given(batches())
def test_micro_batches_and_their_seeds_do_not_depend_on_the_split(drawn):
    """However a batch is split, its micro-batches have the samples, the order and the seeds of the whole."""
    spec, plan = drawn
    order = permutation(spec, plan.epoch)
    whole = make_plan(plan.iteration, plan.epoch, plan.start, {"a": plan.total}).assignments["a"]
    parts = [
        part for assignment in plan.assignments.values() for part in micro_batches_of(spec, order, assignment)
    ]
    assert described(parts) == described(micro_batches_of(spec, order, whole))
    assert sum(part.count for part in parts) == plan.total
    for draws in (Draws.BEFORE, Draws.AFTER):
        assert len({batch_seed(spec, assignment, draws) for assignment in plan.assignments.values()}) == 1


@given(batches())
def test_a_worker_without_samples_computes_some_without_weight(drawn):
    """It takes part in every iteration, by samples of the data set that do not count."""
    spec, plan = drawn
    order = permutation(spec, plan.epoch)
    for assignment in plan.assignments.values():
        if not assignment.count:
            (part,) = micro_batches_of(spec, order, assignment)
            assert (part.count, len(part.indices)) == (0, spec.micro_batch)


@given(batches())
def test_seeds_follow_seed_epoch_position_and_purpose(drawn):
    """They are what docs/virtual-nodes.md says, for each purpose another."""
    spec, plan = drawn
    order = permutation(spec, plan.epoch)
    assignment = make_plan(plan.iteration, plan.epoch, plan.start, {"a": plan.total}).assignments["a"]

    def expected(position, purpose):
        packed = struct.pack("<QQQQ", spec.seed, plan.epoch, position, purpose)
        return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") // 2

    for part in micro_batches_of(spec, order, assignment):
        assert part.seed(Draws.LOADING) == expected(part.position, 0)
        assert part.seed(Draws.COMPUTING) == expected(part.position, 1)
    assert batch_seed(spec, assignment, Draws.AFTER) == expected(plan.start, 2)
    assert batch_seed(spec, assignment, Draws.BEFORE) == expected(plan.start, 3)
