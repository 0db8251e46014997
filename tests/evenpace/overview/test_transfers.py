"""How far transfers are hidden behind computing, as Cannikin's section 3.2 has it, and the figures of it."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from evenpace.overview.job_view import JobView
from evenpace.overview.transfers import bottleneck, transfers, typical
from idl.records import IterationRecord, WorkerRecord
from tests.evenpace.overview.played import recorded

SECONDS = st.floats(1e-3, 1e3)


def worker(backward=math.nan, first=math.nan, others=math.nan, last=math.nan, communication=math.nan):
    """Return the record of a worker that computes for 2 s, and waits for as long."""
    return WorkerRecord(10, 2.0, 2.0, 0.0, 0.5, math.nan, 1, communication, backward, first, others, last)


def of(*workers):
    """Return the workers' transfers in an iteration, (workers,) each."""
    parts = {f"worker-{i}": part for i, part in enumerate(workers)}
    return transfers(IterationRecord.of(0, 0, 10 * len(workers), 4.0, parts).column)


@given(st.lists(st.tuples(SECONDS, st.floats(0, 1), SECONDS, SECONDS), min_size=1, max_size=5))
def test_an_all_reduce_is_as_long_as_the_least_that_any_worker_measured(measured):
    """Exposed is what an iteration takes after its backward pass, by equation 7."""
    shown = of(*(worker(backward, share * backward, *times) for backward, share, *times in measured))
    others, last = (min(times) for times in list(zip(*measured, strict=True))[2:])
    for i, (backward, share, *_) in enumerate(measured):
        first = share * backward
        exposed = max(backward + last, first + others + last) - backward
        assert shown.hidden_share[i] == pytest.approx(1 - exposed / (others + last), abs=1e-9)
        assert shown.exposed_share[i] == pytest.approx(min(1, exposed / 4))
        assert shown.communication_bound[i] == (first + others > backward)


@given(SECONDS, st.floats(0, 1), SECONDS, SECONDS)
def test_pushes_to_a_parameter_server_are_each_workers_own(backward, share, others, last):
    """Where nothing is communicated but exposed pushes, the share is as with an all-reduce."""
    first = share * backward
    assume(abs(first + others - backward) > 1e-6)
    exposed = max(last, first + others + last - backward)
    mine = worker(backward, first, others, last, exposed)
    fast = worker(backward, first, others / 1e3, last / 1e3, last / 1e3)
    alone, shown = of(worker(backward, first, others, last)), of(mine, fast)
    assert shown.hidden_share[0] == pytest.approx(alone.hidden_share[0], abs=1e-9)
    assert shown.exposed_share[0] == pytest.approx(alone.exposed_share[0])
    assert shown.communication_bound[0] == alone.communication_bound[0]


def test_what_is_not_measured_is_not_known():
    """A worker with an all-reduce that measured no backward pass is unknown, and changes no other."""
    one = worker(backward=1.0, first=0.5, others=0.8, last=0.2)
    alone, shown = of(one), of(one, worker())
    for known, values in zip(alone, shown, strict=True):
        assert values[0] == known[0]
        assert np.isnan(values[1])
    assert [bottleneck(value) for value in shown.communication_bound] == ["communication", None]
    assert all(values.shape == (0,) for values in of())


_ANY = st.just(math.nan) | st.floats(0, 1e3)


@given(st.lists(st.builds(worker, _ANY, _ANY, _ANY, _ANY, _ANY), min_size=1, max_size=6))
def test_shares_are_shares(workers):
    """Whatever was measured, shares are from 0 to 1, and not known without the bottleneck."""
    shown = of(*workers)
    for values in shown:
        known = values[~np.isnan(values)]
        assert ((known >= 0) & (known <= 1)).all()
    several = typical(transfers(lambda name: np.array([[getattr(one, name)] for one in workers])))
    assert bottleneck(several.communication_bound[0]) in ("communication", "computing", None)
    for share, bound in zip(shown.hidden_share, shown.communication_bound, strict=True):
        assert not (np.isnan(bound) and not np.isnan(share))


SLOW = worker(backward=1.0, first=0.2, others=1.2, last=0.4)  # 0.8 of 1.6 s are hidden
FAST = worker(backward=2.0, first=0.4, others=1.2, last=0.4)  # 1.2 of 1.6 s are


def viewed(*workers):
    """Return the figures of a job whose workers have the same records in each of its iterations."""
    view = JobView()
    view.add(recorded(number, workers) for number in range(20))
    return view.figures()


def test_figures_are_medians_and_a_job_is_bound_by_what_most_workers_are():
    """The text is there only where communication is the bottleneck of more than half of the workers."""
    figures = viewed(SLOW, SLOW, FAST)
    by_name = {one.worker: one for one in figures.workers}
    slow, fast = by_name["worker-0"], by_name["worker-2"]
    assert (slow.hidden_share, slow.exposed_share) == pytest.approx((0.5, 0.2))
    assert (fast.hidden_share, fast.exposed_share) == pytest.approx((0.75, 0.1))
    assert (slow.bottleneck, fast.bottleneck) == ("communication", "computing")
    assert (figures.hidden_share, figures.exposed_share) == pytest.approx((0.5, 0.2))
    said = "exposed transfers take 20% of an iteration, 50% of all transfers are hidden"
    assert figures.transfers_text == f"bound by communication: {said}"
    assert viewed(SLOW, FAST).transfers_text == ""
    assert viewed(SLOW, worker(), worker()).transfers_text != ""
