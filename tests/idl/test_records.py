"""Records of iterations: packing loses nothing, nor does the way over the wire."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import idl
from idl.errors import InvalidRequestError
from idl.gradient_norms import GradientNorms, StepNorms
from idl.records import IterationRecord, WorkerRecord
from idl.translation import read_history, wire_history
from rpc import codec

_numbers = st.just(0.0) | st.floats(min_value=1e-9, allow_nan=False)
_parts = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    st.builds(
        WorkerRecord,
        st.integers(0, 2**62),
        *[_numbers] * 4,
        st.just(math.nan) | _numbers,
        st.just(1) | st.integers(1, 2**62),
        st.just(math.nan) | _numbers,
        cost=st.just(math.nan) | _numbers,
    ),
    max_size=5,
)


_norms = st.builds(
    lambda iteration, more, own: StepNorms(iteration, GradientNorms(own[0], own[0] + more, *own[1:])),
    st.integers(0, 2**60),
    st.integers(0, 2**60),
    st.tuples(st.integers(1, 2**60), _numbers.filter(math.isfinite), _numbers.filter(math.isfinite)),
)


def records_of(all_parts, norms=None):
    """A record for each iteration's workers."""
    return [
        IterationRecord.of(number, number // 3, 64, 0.5 + number, parts, number // 5, 64 * number, norms)
        for number, parts in enumerate(all_parts)
    ]


@given(_parts)
def test_parts_come_back_as_they_were(parts):
    """To the last bit, in their order, as parts and as columns."""
    (record,) = records_of([parts])
    assert repr(record.parts) == repr(parts)  # which tells NaN from NaN no better than 1 from 1
    assert record.batch_sizes.tolist() == [part.batch_size for part in parts.values()]
    assert record.column("at_once").tolist() == [part.at_once for part in parts.values()]
    assert record.column("memory_usage").tolist() == [part.memory_usage for part in parts.values()]
    for speed, part in zip(record.speeds, parts.values(), strict=True):
        done = part.batch_size if math.isnan(part.cost) else part.cost
        known = done and part.batch_processing_time
        assert math.isnan(speed) if not known else speed == done / part.batch_processing_time


@given(st.lists(_parts, min_size=1, max_size=5), st.none() | _norms)
def test_records_go_over_the_wire(all_parts, norms):
    """A client reads what the manager wrote; records of the same workers share their names."""
    records = records_of([*all_parts, all_parts[-1]], norms)
    result = idl.batchsize_manager.BatchSizeManager.history_result
    written = codec.encode(codec.Header("history", 2, 1), result(success=wire_history("run", records)))
    run, read = read_history(codec.decode(written, result).success)
    assert (run, read) == ("run", records)
    assert read[-1].workers is read[-2].workers


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("workers", 1, "workers"),
        ("waiting_times", b"12345678", "each column"),
        ("at_once", b"12345678", "each column"),
        ("total", None, "total"),
        ("norms", idl.common.GradientNorms(3, 9, 8, 1.0, 1.0), "norms.contributions"),
        ("norms", idl.common.GradientNorms(3, 2, 8, math.nan, 1.0), "norms.weighted"),
    ],
)
def test_what_makes_no_sense_is_refused(name, wrong, message):
    """No such list of names, a column of another length, a missing field, or norms of no gradients."""
    parts = {"a": WorkerRecord(1, *[0.5] * 5), "b": WorkerRecord(2, *[1.0] * 5)}
    history = wire_history("run", records_of([parts]))
    setattr(history.iterations[0], name, wrong)
    with pytest.raises(InvalidRequestError, match=message):
        read_history(history)
