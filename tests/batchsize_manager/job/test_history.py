"""What is kept of a job's last iterations."""

import gc
import math
import sys

from hypothesis import example, given
from hypothesis import strategies as st

from batchsize_manager.job import history
from batchsize_manager.job.history import History
from idl.gradient_norms import GradientNorms, StepNorms
from idl.noise_estimate import NoiseEstimate
from idl.records import IterationRecord, WorkerRecord

_numbers = st.floats(min_value=0, allow_nan=False)
_workers = st.dictionaries(
    st.text(max_size=5),
    st.builds(
        WorkerRecord,
        st.integers(0, 2**62),
        *[_numbers] * 4,
        st.just(math.nan) | _numbers,
        st.integers(1, 2**62),
    ),
    max_size=5,
)


def records_of(all_workers, begin=0):
    """A record for each iteration's workers."""
    return [
        IterationRecord.of(begin + number, number // 3, 64, 0.5 + number, workers, number // 5, 64 * number)
        for number, workers in enumerate(all_workers)
    ]


def size_of(root):
    """Return the bytes of an object and of all that it refers to, but for classes."""
    seen, left, size = set(), [root], 0
    while left:
        each = left.pop()
        if id(each) not in seen and not isinstance(each, type):
            seen.add(id(each))
            size += sys.getsizeof(each)
            left += gc.get_referents(each)
    return size


def test_a_workers_part_takes_its_packed_bytes():
    """Of each iteration, 64 bytes are kept for each worker, and some hundred for all of them."""
    kept_records = History()
    for record in records_of([{f"w{n}": WorkerRecord(n, n + 0.5) for n in range(100)}] * 200):
        kept_records.add(record)
    assert len(kept_records.page(0, 999)) == 200
    assert size_of(kept_records) < 200 * (100 * 64 + 1000)


@given(
    st.lists(_workers, max_size=12),
    st.integers(1, 20),
    st.integers(0, 5),
    st.integers(0, 20),
    st.integers(1, 9),
)
@example([{"w": WorkerRecord(1, 1.0)}] * 3, 2, 0, 0, 9)  # as many as may be kept, and one more
def test_history_keeps_the_latest(all_workers, limit, begin, asked, count):
    """What is kept is the end of what came, with no more workers' records than allowed."""
    kept_before, history._RECORDS = history._RECORDS, limit
    try:
        records, kept_records = records_of(all_workers, begin), History()
        for record in records:
            kept_records.add(record)
    finally:
        history._RECORDS = kept_before

    kept = kept_records.page(0, 99)

    assert kept == records[len(records) - len(kept) :]
    assert len(kept) >= min(1, len(records))
    assert len(kept) == 1 or sum(len(record.workers) for record in kept) <= limit
    assert kept_records.page(asked, count) == [r for r in kept if r.iteration >= asked][:count]
    assert kept_records.latest(count) == kept[-count:]
    if len(kept) < len(records):
        assert sum(len(record.workers) for record in records[-len(kept) - 1 :]) > limit


def test_the_noise_is_estimated_from_the_norms_once_each():
    """A job that goes back repeats iterations, whose norms say nothing new."""
    kept, parts = History(), {"w": WorkerRecord(4, 0.5)}
    told = [StepNorms(number, GradientNorms(2, 8, 20.0 + number, 1.0)) for number in range(5)]
    for number in (0, 1, 2, 1, 2, 3, 4):
        kept.forget_from(number)
        kept.add(IterationRecord.of(number, 0, 8, 0.5, parts, norms=told[number]))
    once = NoiseEstimate()
    for norms in told:
        once = once.observe(norms.norms)
    assert kept.noise.observed == 5
    assert kept.noise.noise == once.noise
