"""What is kept of a job's last iterations, and that packing loses nothing."""

from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.job import history
from batchsize_manager.job.history import History
from batchsize_manager.job.packed import pack
from idl.records import IterationRecord, WorkerRecord

_numbers = st.floats(min_value=0, allow_nan=False)
_workers = st.dictionaries(
    st.text(max_size=5),
    st.builds(
        WorkerRecord, st.integers(0, 2**62), _numbers, _numbers, _numbers, _numbers, st.none() | _numbers
    ),
    max_size=5,
)


def records_of(all_workers, begin=0):
    """A record for each iteration's workers."""
    return [
        IterationRecord(begin + number, number // 3, 64, 0.5 + number, workers, number // 5, 64 * number)
        for number, workers in enumerate(all_workers)
    ]


@given(st.lists(_workers, min_size=1, max_size=5))
def test_records_come_back_as_they_were(all_workers):
    """A record is the same after packing, to the last bit; who stays shares the names with the one before."""
    previous = None
    for record in records_of([*all_workers, all_workers[-1]]):
        packed = pack(record, previous)
        assert packed.unpack() == record
        if previous is not None and packed.names == previous.names:
            assert packed.names is previous.names
        previous = packed


@given(
    st.lists(_workers, max_size=12),
    st.integers(1, 20),
    st.integers(0, 5),
    st.integers(0, 20),
    st.integers(1, 9),
)
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
