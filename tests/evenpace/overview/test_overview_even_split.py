"""Times with an even split: estimated from a balanced job, against those of the even split when played."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.policies import PolicyOptions, make_policy
from batchsize_manager.policies.curves import Curves
from evenpace.overview.even_split import even_durations, with_even_shares
from evenpace.overview.job_view import JobView
from tests.evenpace.overview.played import iteration, play, seconds


def played(policy, slopes, fixed, noise, slowed=1.0, iterations=200, total=None, spikes=0.0, seed=1):
    """Workers of given seconds per sample, and fixed cost in samples; the last slows down on the way.

    Some of a worker's times, a share of `spikes`, are five times as long.
    """
    random = np.random.default_rng(seed)
    chance = np.exp(noise * random.standard_normal((iterations, len(slopes))))
    chance *= np.where(random.random(chance.shape) < spikes, 5.0, 1.0)

    def time_of(worker, number, count):
        factor = slowed if worker == len(slopes) - 1 and 80 <= number < 140 else 1.0
        return factor * slopes[worker] * (fixed + count) * chance[number, worker]

    return play(
        make_policy(policy, PolicyOptions(predictor="ema")),
        len(slopes),
        total or 64 * len(slopes),
        iterations,
        time_of,
    )


def estimate(iterations):
    """The speedup over all of them, as estimated."""
    view = JobView()
    view.add(iterations)
    figures = view.figures()
    return (figures.seconds + figures.saved_seconds) / figures.seconds


@pytest.mark.parametrize("policy", ["proportional", "learned"])
def test_a_first_iteration_that_is_slow_for_all_misleads_nobody(policy):
    """Start-up costs make even shares look slow, which were seen in that iteration alone."""
    slopes, chance = [0.01, 0.014, 0.02, 0.05], np.random.default_rng(4).standard_normal((200, 4))

    def time_of(worker, number, count):
        started = 3.0 if number == 0 else 1.0
        return started * slopes[worker] * (40 + count) * float(np.exp(0.02 * chance[number, worker]))

    runs = {
        name: play(make_policy(name, PolicyOptions(predictor="ema")), 4, 256, 200, time_of)
        for name in ("even", policy)
    }
    assert estimate(runs[policy]) == pytest.approx(seconds(runs["even"]) / seconds(runs[policy]), rel=0.06)


def test_of_an_even_split_nothing_is_saved():
    """The estimate is the measured duration itself where shares are even, to rounding."""
    view = JobView()
    view.add(played("even", [0.01, 0.02, 0.015], 5, 0.1, total=100))
    figures = view.figures()
    assert (figures.speedup, figures.saved_seconds) == (1.0, 0.0)
    assert figures.even_throughput == figures.throughput
    assert figures.headline.startswith("split evenly; balanced would be up to 1.")


@pytest.mark.ci
@pytest.mark.parametrize("fixed", [0, 16, 64])
def test_what_balancing_would_win_is_told_of_an_even_split(fixed):
    """Right to a tenth once other batch sizes were seen; between its bounds before, when only one was."""
    slopes = [0.010, 0.008, 0.030, 0.012]
    even, balanced = played("even", slopes, fixed, 0.02), played("learned", slopes, fixed, 0.02)
    truth = seconds(even[-100:]) / seconds(balanced[-100:])
    assert truth > 1.2
    alone = JobView()
    alone.add(even)
    figures = alone.figures()
    assert figures.balanced_least * 0.98 < truth < figures.balanced_most * 1.02
    assert "split evenly; balanced would be up to 2." in figures.headline
    after = JobView()
    after.add(balanced)
    assert after.figures().balanced_speedup is None
    after.add(replace(one, iteration=len(balanced) + number) for number, one in enumerate(even))
    figures = after.figures()
    assert figures.balanced_speedup == pytest.approx(truth, rel=0.1)
    assert figures.balanced_least * 0.98 < truth < figures.balanced_most * 1.02
    would_be = r"balanced would be (up to )?2\.\d× as fast"
    assert re.search(rf"split evenly; \d+ min saved(, at least \d min)?; {would_be}", figures.headline)


def test_equal_workers_have_nothing_to_win():
    """Neither for their noise is a gain promised, nor to a worker alone."""
    figures = []
    for slopes in ([0.01] * 4, [0.01]):
        view = JobView()
        view.add(played("even", slopes, 5, 0.1))
        figures.append(view.figures())
    assert [one.headline for one in figures] == ["as fast as even", "one worker: nothing to balance"]
    assert figures[0].balanced_speedup == pytest.approx(1.0, abs=0.05)
    assert figures[1].balanced_speedup is None


@pytest.mark.ci
@settings(deadline=None, max_examples=12, derandomize=True)
@given(
    st.sampled_from(["proportional", "leader_straggler", "learned"]),
    st.lists(st.floats(0.01, 0.1), min_size=2, max_size=6),
    st.floats(0, 0.6),
    st.sampled_from([0.0, 0.02, 0.05, 0.1]),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([0.0, 0.01]),
)
def test_no_more_is_claimed_than_is_true(policy, slopes, share, noise, slowed, spikes):
    """The bound in the headline holds for any workers, fixed costs, noise, hiccups and slow times."""
    fixed = 64 * share / (1 - share)
    balanced = played(policy, slopes, fixed, noise, slowed, iterations=120, spikes=spikes)
    even = played("even", slopes, fixed, noise, slowed, iterations=120, spikes=spikes)
    view = JobView()
    view.add(balanced)
    figures = view.figures()
    truth = seconds(even) - seconds(balanced)
    slack = 0.05 * seconds(even)
    assert figures.saved_least <= truth + slack
    assert figures.saved_seconds <= truth + 3 * slack


def test_a_worker_without_samples_would_have_some():
    """A worker that is given nothing any more counts in an even split, as fast as it was last."""
    view = JobView()
    view.add([iteration(0, [50, 50], [0.5, 5.0]), iteration(1, [100, 0], [1.0, 0.001])])
    assert view.timeline().even_durations[1] == pytest.approx(5.004)


@settings(deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda workers: st.lists(
            st.tuples(
                st.lists(st.integers(0, 500), min_size=workers, max_size=workers),
                st.lists(st.floats(1e-4, 1e3), min_size=workers, max_size=workers),
            ),
            min_size=1,
            max_size=8,
        )
    ),
    st.sampled_from([0.25, 8.0]),
)
def test_estimates_are_positive_and_know_no_unit(parts, scale):
    """An estimate is above 0 for any times, and the same in another unit of time."""
    views = []
    for factor in (1.0, scale):
        view = JobView()
        view.add(
            iteration(k, sizes, [factor * time for time in times]) for k, (sizes, times) in enumerate(parts)
        )
        views.append(view)
    ours, scaled = (view.timeline() for view in views)
    for duration, even, other in zip(ours.durations, ours.even_durations, scaled.even_durations, strict=True):
        assert (even is None) == (other is None)
        if even is not None:
            assert 0 < even < np.inf
            overhead = 0.004 * (1 - scale)  # which is not scaled here
            assert other + (scale - 1) * 0.004 == pytest.approx(
                scale * even, rel=1e-6, abs=abs(overhead) * 1e-6
            )
        assert duration > 0


@given(st.lists(st.integers(1, 500), min_size=1, max_size=8), st.floats(0, 100))
def test_more_samples_never_take_less(sizes, fixed):
    """A worker with less than an even share would take longer with it, and one with more, shorter."""
    sizes = np.array(sizes, dtype=float)
    times = np.ones(len(sizes))
    one = np.ones(len(sizes))
    curves = Curves(fixed * one, 0 * one, one, one, one, one, one, one)
    even = with_even_shares(sizes, times, curves)
    assert (even[sizes < sizes.mean()] >= 1).all()
    assert (even[sizes > sizes.mean()] <= 1).all()
    found = even_durations(np.array([1.5]), sizes[None], times[None], [curves])
    assert found == pytest.approx(0.5 + even.max())
