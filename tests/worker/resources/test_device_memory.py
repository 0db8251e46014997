"""The largest batch that fits, and the reported use of a device's memory, on made-up figures."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.errors import InvalidRequestError
from idl.plan import Assignment, JobSpec
from lab.observer import Observer
from rpc.address import Address
from tests.scripts.train_least_squares import go_through
from tests.worker.least_squares import services
from worker.data.batches import cut, map_arrays, samples_in, weighted_mean
from worker.resources.device_memory import DeviceMemory, MemoryWatch, largest_batch, limit_between
from worker.session import Session, SessionConfig

MIB = 2**20


def line(*sizes, base=1000 * MIB, per_sample=10 * MIB):
    """Return peaks that grow by a number of bytes for each sample."""
    return {size: base + per_sample * size for size in sizes}


def test_the_largest_batch_follows_from_the_line():
    """With 1000 MiB fixed and 10 MiB a sample, 95% of 4000 MiB hold 280 samples."""
    assert largest_batch(line(64, 80, 96, 128), 4000 * MIB) == 280


def test_what_is_not_well_determined_gives_no_limit():
    """Few, similar, scattered or falling peaks, and a limit far away, give no limit."""
    assert largest_batch(line(64, 80, 128), 4000 * MIB) is None
    assert largest_batch(line(100, 101, 102, 103), 4000 * MIB) is None
    assert largest_batch({**line(64, 80, 96, 128), 100: 2500 * MIB}, 4000 * MIB) is None
    assert largest_batch(line(64, 80, 96, 128, base=4000 * MIB, per_sample=-MIB), 4000 * MIB) is None
    assert largest_batch(line(64, 80, 96, 128, per_sample=MIB), 4000 * MIB) is None
    assert largest_batch({}, 4000 * MIB) is None


@given(
    base=st.integers(0, 2000),
    per_sample=st.floats(0.5, 50),
    sizes=st.sets(st.integers(1, 300), min_size=4, max_size=20),
    room=st.integers(100, 20_000),
    seed=st.integers(0, 2**16),
)
def test_a_predicted_batch_fits(base, per_sample, sizes, room, seed):
    """If peaks lie within 1% of their span of a line, a predicted batch fits into the room."""
    span = per_sample * (max(sizes) - min(sizes))
    noise = np.random.default_rng(seed).uniform(-0.01, 0.01, len(sizes)) * span
    peaks = {
        size: int((base + per_sample * size + off) * MIB)
        for size, off in zip(sorted(sizes), noise, strict=True)
    }
    largest = largest_batch(peaks, room * MIB)
    if largest:
        # The slope may be off by what the noise allows: over 4 times the sizes, some of the 5% kept free.
        assert base + per_sample * largest <= max(room, max(peaks.values()) / MIB) * 1.05
        assert largest <= 4 * max(sizes)


def test_failures_halve_what_is_not_known():
    """The limit lies between sizes that fitted and failed, and converges within a few failures."""
    fitted, failed, failures = 50, 1000, 0
    while fitted < 120:
        limit = limit_between(fitted, failed)
        assert fitted <= limit < failed
        if limit <= 123:
            fitted = limit
            break
        failed, failures = limit, failures + 1
    assert 50 < fitted <= 123
    assert failures <= 5


def test_the_share_counts_others_and_a_limit_of_ones_own():
    """The occupied share is the device's, or this process's of its own limit."""
    assert DeviceMemory(total=100, others=20, peak=30, limit=100).share == pytest.approx(0.5)
    assert DeviceMemory(total=100, others=20, peak=30, limit=40).share == pytest.approx(0.75)
    assert DeviceMemory(total=100, others=100, peak=0, limit=100).share == 1.0
    assert DeviceMemory(total=100, others=30, peak=0, limit=100).room == 70


def watched(counts, room, peak, total=1000):
    """Let a session's watch see iterations of these batch sizes.

    Args:
        counts: Samples of each iteration.
        room: Returns an iteration's room in bytes.
        peak: Returns the peak in bytes for a number of samples.
        total: Samples of the whole batch.

    Returns:
        What the watch has returned, and the limits that the manager would be told.
    """
    reads = iter([DeviceMemory(2 * room(i), room(i), peak(n), 2 * room(i)) for i, n in enumerate(counts)])
    with contextlib.closing(Session(SessionConfig(Address("127.0.0.1", 1)))) as session:
        session.training.declare(JobSpec(10_000, total))
        watch = MemoryWatch(session, lambda: next(reads))
        shares, told = [], []
        for iteration, count in enumerate(counts):
            session.assignment = Assignment(iteration, 0, 0, count, total)
            shares.append(watch())
            told.append(session.limits.take_learned())
    return shares, [limit for limit in told if limit is not None]


@pytest.mark.parametrize(
    ("counts", "room", "total", "limit"),
    [
        pytest.param([64, 80, 96, 128, 130, 140], lambda i: 4000, 1000, 280, id="once, for few percent"),
        pytest.param(
            [64, 80, 96, 128, 120], lambda i: 3000 if i else 4000, 1000, 280, id="by the most room there was"
        ),
        pytest.param([64, 80, 96, 128], lambda i: 4000, 200, None, id="not above the whole batch"),
    ],
)
def test_a_watch_tells_the_limit(counts, room, total, limit):
    """It is known after four sizes, and holds for good though others take memory for a while."""
    shares, told = watched(
        counts, lambda i: room(i) * MIB, lambda n: 1000 * MIB + 10 * MIB * n + n % 3, total=total
    )
    assert told == ([] if limit is None else [pytest.approx(limit, abs=1)])
    assert all(0.5 < share <= 1 for share in shares)


def test_the_fuller_memory_is_reported(wait_until):
    """The device's memory is reported only where it is fuller than the machine's."""
    with (
        services(1) as (manager, shards),
        contextlib.closing(Session(SessionConfig(manager, tuple(shards), worker="w"))) as session,
        contextlib.closing(Observer(manager, ())) as seen,
    ):
        peaks = iter([0, 100, 0])
        session.meter.memory_usage = MemoryWatch(session, lambda: DeviceMemory(100, 0, next(peaks), 100))
        for _ in go_through(session, 3):
            pass
        wait_until(lambda: seen.poll() and len(seen.iterations) == 3, "the last report")
    machine, device, again = (record.column("memory_usage")[0] for record in seen.iterations)
    assert device == 1.0
    assert 0 < machine < 1
    assert 0 < again < 1


# -- batches in pieces


def test_batches_are_cut_along_the_samples():
    """Arrays and lists of that length are cut in any nesting; other objects stay."""
    batch = ({"x": np.arange(10), "names": list("abcdefghij")}, [np.zeros((10, 2)), None], "label")
    assert samples_in(batch) == 10
    part = cut(batch, 3, 5, 10)
    assert part[0]["x"].tolist() == [3, 4]
    assert part[0]["names"] == ["d", "e"]
    assert part[1][0].shape == (2, 2)
    assert part[1][1] is None
    assert part[2] == "label"


def test_batches_that_cannot_be_cut_are_refused():
    """Arrays of different lengths, without dimensions, and no arrays at all are refused."""
    with pytest.raises(InvalidRequestError, match="are 3, 4"):
        samples_in((np.zeros(3), np.zeros(4)))
    with pytest.raises(InvalidRequestError, match="are None"):
        samples_in((np.zeros(()),))
    with pytest.raises(InvalidRequestError, match="are none"):
        samples_in(("text", 3))


def test_results_are_averaged_by_weight():
    """Numbers and arrays in tuples and dictionaries; None stays None."""
    first = {"loss": 1.0, "parts": (np.array([0.0, 2.0]), None)}
    second = {"loss": 3.0, "parts": (np.array([4.0, 2.0]), None)}
    mean = weighted_mean([first, second], [0.25, 0.75])
    assert mean["loss"] == 2.5
    assert mean["parts"][0].tolist() == [3.0, 2.0]
    assert mean["parts"][1] is None
    assert map_arrays(lambda a: a * 2, mean)["parts"][0].tolist() == [6.0, 4.0]
