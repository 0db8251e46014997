"""Views of jobs: the figures of their iterations, whatever these are, and how many are kept."""

import json
import re
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.policies.learned import Learned
from evenpace.overview import columns, phrases, thinned_rows
from evenpace.overview.job_view import JobView
from evenpace.overview.statistics import others_median
from evenpace.overview.stragglers import balanced
from tests.evenpace.overview.played import OVERHEAD, iteration, play

TIMES = 0.001 * np.exp(0.1 * np.random.default_rng(7).standard_normal((500, 4)))
"""Seconds per sample of the slowest of four workers, with noise, (iterations, workers)."""


def viewed(iterations):
    """Make a view of iterations."""
    view = JobView()
    view.add(iterations)
    return view


def noisy(per_sample, iterations, sizes=None, noise=0.1, factor=lambda worker, number: 1.0, cpu=None):
    """Workers of known seconds per sample, with noise, and factors on them."""
    chance = np.exp(noise * np.random.default_rng(3).standard_normal((iterations, len(per_sample))))
    sizes = sizes or [50] * len(per_sample)
    return [
        iteration(
            k,
            sizes,
            [
                size * each * factor(i, k) * chance[k, i]
                for i, (size, each) in enumerate(zip(sizes, per_sample, strict=True))
            ],
            cpu=cpu and [cpu(i, k) for i in range(len(sizes))],
        )
        for k in range(iterations)
    ]


# -- verdicts


def by_name(figures):
    """Return the workers' figures by name."""
    return {one.worker: one for one in figures.workers}


def test_a_chronic_straggler_is_named_with_its_reason():
    """A worker that always takes 2.5 times as long per sample as the others is chronic, despite noise."""
    figures = viewed(noisy([0.01] * 5 + [0.025], 150)).figures()
    worst = figures.workers[0]
    assert (worst.worker, worst.verdict) == ("worker-5", "chronic")
    assert worst.verdict_text == (
        "takes 2.5 times as long per sample as the others' median, in 100 of the last 100 iterations"
    )
    assert figures.verdicts == {"chronic": 1, "passing": 0, "leader": 0, "even": 5}
    assert worst.relative_to_others == pytest.approx(0.4, rel=0.05)


def test_a_passing_straggler_is_named_while_it_lasts():
    """A worker slower than at its best for 12 iterations is passing; the text has its CPUs' share taken."""

    def slow(worker, number):
        return 1.8 if worker == 2 and 188 <= number < 200 else 1.0

    iterations = noisy(
        [0.01] * 5, 240, noise=0.01, factor=slow, cpu=lambda i, k: 0.45 if slow(i, k) > 1 else 0.0
    )
    view = viewed(iterations[:200])
    one = by_name(view.figures())["worker-2"]
    assert one.verdict == "passing"
    assert (
        one.verdict_text == "1.8 times slower than at its best for 12 iterations; others take 45% of its CPUs"
    )
    view.add(iterations[200:])
    assert by_name(view.figures())["worker-2"].verdict == "even"


def test_a_hiccup_is_no_verdict():
    """Two slow iterations are not worth a name."""
    slow = noisy([0.01] * 4, 100, noise=0.02, factor=lambda i, k: 5.0 if i == 1 and k >= 98 else 1.0)
    assert viewed(slow).figures().verdicts["even"] == 4


def test_a_worker_with_fewer_samples_is_not_slower_for_that():
    """Samples cost more in a small batch with fixed costs; that makes no worker slower than at its best."""
    random = np.random.default_rng(4)

    def times(sizes):
        return [0.01 * (40 + size) * float(np.exp(0.02 * random.standard_normal())) for size in sizes]

    before = [iteration(k, [50, 50, 50], times([50, 50, 50])) for k in range(60)]
    after = [iteration(60 + k, [10, 70, 70], times([10, 70, 70])) for k in range(30)]
    assert by_name(viewed(before + after).figures())["worker-0"].verdict != "passing"


def test_who_waits_for_others_is_no_straggler():
    """Not if it is slower than at its best, as the fastest may be; one that is waited for is."""

    def slower(worker, number):
        return 1.6 if worker == 0 and number >= 60 else 1.0

    waiting = by_name(viewed(noisy([0.002, 0.01, 0.012], 100, noise=0.02, factor=slower)).figures())[
        "worker-0"
    ]
    assert waiting.waiting_share > 0.5
    assert waiting.verdict == "leader"
    assert re.fullmatch(r"the fastest: 5\.\d times as fast as the others' median", waiting.verdict_text)
    awaited = viewed(noisy([0.01, 0.01, 0.01], 100, noise=0.02, factor=slower)).figures()
    assert by_name(awaited)["worker-0"].verdict == "passing"


def test_the_text_says_what_the_balancer_did():
    """The text of a smaller batch has the time it saves a straggler, that of a larger one its cost."""
    before = [iteration(k, [300, 60], [300 / 44, 60 / 316]) for k in range(5)]
    after = [iteration(k, [44, 316], [1.0, 1.0]) for k in range(5, 25)]
    figures = by_name(viewed(before + after).figures())
    assert figures["worker-0"].won_per_iteration == pytest.approx(180 / 44 - 1, rel=0.05)
    assert figures["worker-0"].balanced_text == (
        "takes 44 instead of 180 samples, which saves it "
        f"{phrases.seconds(figures['worker-0'].won_per_iteration)} per iteration"
    )
    assert figures["worker-1"].won_per_iteration == pytest.approx(180 / 316 - 1, rel=0.05)
    assert figures["worker-1"].balanced_text.startswith("takes 316 instead of 180 samples, 0.4")


def test_the_words_fit_the_figures():
    """A larger batch saves its worker nothing, and who is slower without being a straggler keeps no pace."""
    assert balanced(306, 300, 0.01) == "takes 306 instead of 300 samples"
    assert balanced(294, 300, -0.01) == "takes 294 instead of 300 samples"
    figures = by_name(viewed(noisy([0.010, 0.010, 0.010, 0.012], 100, noise=0.01)).figures())
    assert figures["worker-0"].verdict_text == "keeps pace with the others"
    assert figures["worker-3"].verdict_text == "takes 1.2 times as long per sample as the others' median"


# -- figures


def test_sums_and_rates_of_a_job_worked_out_by_hand():
    """Two workers with half the batch each, one twice as slow."""
    view = viewed(
        iteration(k, [10, 10], [1.0, 2.0], predicted=[8.0, 5.0], cpu=[0.25, 0.5]) for k in range(150)
    )
    figures = view.figures({"worker-0": "working", "worker-1": "waiting"})
    assert (figures.iterations, figures.iteration, figures.epoch, figures.samples) == (150, 149, 1, 3000)
    assert figures.seconds == pytest.approx(150 * (2 + OVERHEAD))
    assert figures.throughput == pytest.approx(20 / (2 + OVERHEAD))
    assert figures.iteration_time == pytest.approx(2 + OVERHEAD)
    assert figures.waiting_share == pytest.approx(1 / 4)
    assert figures.prediction_error == pytest.approx(np.sqrt(0.04 / 2))
    slow, fast = figures.workers
    assert [slow.worker, fast.worker] == ["worker-1", "worker-0"]
    assert (slow.state, slow.batch_size, slow.even_batch_size) == ("waiting", 10, 10.0)
    assert (slow.waiting_share, fast.waiting_share) == (0.0, 0.5)
    assert (fast.waiting_time, fast.real_speed, fast.predicted_speed) == (1.0, 10.0, 8.0)
    assert fast.prediction_error == pytest.approx(0.2)
    assert (slow.cpu_usage, slow.memory_usage) == (0.5, 0.5)
    assert slow.seconds_per_sample.median == pytest.approx(0.2)
    assert [one.worker for one in view.figures(limit=1).workers] == ["worker-1"]
    assert view.figures(limit=0).verdicts == figures.verdicts


@pytest.mark.ci
def test_who_looks_and_when_changes_no_sum(monkeypatch):
    """A viewer who looks now and then has the same time saved as a report afterwards, to the last digit."""
    monkeypatch.setattr(columns, "_ROWS", 400)  # fewer than are played
    played = play(Learned(0.0), 4, 240, 500, lambda i, k, count: TIMES[k, i] * (8 + count) / (1 + i))
    at_once, live = viewed(played), JobView()
    for first in range(0, len(played), 37):
        live.add(played[first : first + 37])
        live.figures()
    assert live.figures().saved_seconds == at_once.figures().saved_seconds
    assert live.timeline().even_durations == at_once.timeline().even_durations


def test_workers_come_and_go():
    """A worker that left is gone, later dropped; one that joined is compared over its own iterations."""
    view = JobView()
    view.add(iteration(k, [10, 10], [1.0, 1.0], ["stays", "leaves"]) for k in range(50))
    view.add(iteration(50 + k, [10, 10], [1.0, 1.0], ["comes", "stays"]) for k in range(60))
    states = {one.worker: one.state for one in view.figures({"stays": "working", "comes": "away"}).workers}
    assert states == {"stays": "working", "comes": "away", "leaves": "gone"}
    timeline = view.timeline(workers=["leaves", "comes", "nobody"]).workers
    assert timeline["leaves"].batch_sizes == [10.0] * 50 + [None] * 60
    assert timeline["comes"].speeds == [None] * 50 + [10.0] * 60
    assert timeline["nobody"].batch_processing_times == [None] * 110
    view.add(iteration(110 + k, [10, 10], [1.0, 1.0], ["comes", "stays"]) for k in range(40))
    assert {one.worker for one in view.figures().workers} == {"stays", "comes"}


def test_what_is_computed_at_once_is_that_of_each_workers_last_iteration():
    """The number may change in any iteration, and a worker that is gone keeps its last one."""
    both = [iteration(k, [8, 8], [1.0, 1.0], ["a", "b"], at_once=[1 + k, 3]) for k in range(4)]
    view = viewed([*both, iteration(4, [8], [1.0], ["a"], at_once=[2])])
    assert {name: one.at_once for name, one in by_name(view.figures()).items()} == {"a": 2, "b": 3}


@pytest.mark.ci
def test_memory_is_bounded_where_many_come_and_go(monkeypatch):
    """Most of 750 workers over time, ten of which are there at once, are dropped."""
    monkeypatch.setattr(columns, "_VALUES", 400_000)
    view = JobView()
    for k in range(750):
        names = [f"w{k + i}" for i in range(10)]
        view.add([iteration(k, [1] * 10, [1.0] * 10, names)])
    assert view._slots.count < 375
    assert view._recent.values.size <= 2_000_000
    assert len(view.figures().workers) == 109


@pytest.mark.ci
def test_a_long_job_is_thinned_and_its_sums_are_exact(monkeypatch):
    """Where at most 800 of 1,000 iterations are kept, all the last ones are; sums are over all."""
    monkeypatch.setattr(thinned_rows, "MOST", 800)
    monkeypatch.setattr(thinned_rows, "_COMPLETE", 400)
    monkeypatch.setattr(columns, "_ROWS", 400)
    view = viewed(iteration(k, [k % 7 + 1, 3], [0.5, 0.25]) for k in range(1000))
    figures = view.figures()
    assert figures.iterations == 1000
    assert figures.samples == sum(k % 7 + 4 for k in range(1000))
    assert figures.seconds == pytest.approx(1000 * (0.5 + OVERHEAD), rel=1e-9)
    assert len(view._rows) <= 800
    everything = view.timeline(points=10**6).iterations
    assert everything[-400:] == list(range(600, 1000))
    assert everything == sorted(set(everything))
    short = view.timeline()
    assert 150 <= len(short.iterations) <= 300
    assert short.iterations[-1] == 999
    assert view.timeline(last=10).iterations == list(range(990, 1000))


def test_a_rewind_voids_what_was_done():
    """Iterations that are done again replace the earlier ones, and sums count them once."""
    first = [iteration(k, [10, 30], [1.0, 1.0]) for k in range(100)]
    again = [iteration(k, [20, 20], [0.5, 0.5], attempt=1) for k in range(60, 80)]
    view, clean = viewed(first), viewed(first[:60])
    for part in (view, clean):
        part.add(again)
    ours, theirs = asdict(view.timeline()), asdict(clean.timeline())
    # What was seen of workers' times stays, so that estimates are as good as can be.
    estimates = ours.pop("even_durations")
    assert estimates == pytest.approx(theirs.pop("even_durations"), rel=0.05)
    assert ours["iterations"][60:] == list(range(60, 80))
    assert estimates[60:] == pytest.approx(ours["durations"][60:])  # even splits
    assert ours == theirs
    ours, theirs = view.figures(), clean.figures()
    assert (ours.iterations, ours.samples, ours.seconds) == (80, 3200, theirs.seconds)
    assert ours.iteration == 79


def test_nothing_and_one_iteration():
    """A job without an iteration has no figures yet; with one, it has those that it can have."""
    assert JobView().figures().headline == "no iteration is complete yet"
    assert JobView().timeline(workers=["a"]).iterations == []
    figures = viewed([iteration(0, [4, 4], [1.0, 3.0])]).figures()
    assert figures.workers[0].verdict_text == "too early to tell, after 1 iteration"
    alone = viewed(iteration(k, [4], [1.0]) for k in range(20)).figures()
    assert alone.headline == "one worker: nothing to balance"
    assert alone.workers[0].verdict_text == "has nobody to be compared with"


part = st.tuples(
    st.sampled_from(["a", "b", "c", "d", "e"]),
    st.integers(0, 1000),
    st.just(0.0) | st.floats(1e-9, 1e6),
    st.floats(0, 1),
    st.floats(0, 1e9) | st.just(float("nan")),
)


records = st.lists(
    st.tuples(st.integers(0, 15), st.lists(part, min_size=1, max_size=4, unique_by=lambda one: one[0])),
    max_size=8,
)


@settings(deadline=None, max_examples=50)
@given(records)
def test_whatever_was_recorded_makes_values_that_json_has(records):
    """Any workers, counts of 0, times of 0, rewinds and missing predictions: figures are finite or None."""
    view = JobView()
    for number, parts in records:
        names, sizes, times, cpu, predicted = zip(*parts, strict=True)
        view.add([iteration(number, sizes, times, names, cpu, predicted)])
    figures, timeline = view.figures({"a": "working"}), view.timeline(workers=["a", "b"])
    json.dumps([asdict(figures), asdict(timeline)], allow_nan=False)
    assert figures.speedup is None or figures.speedup > 0
    assert sum(figures.verdicts.values()) == len(figures.workers)
    for lists in (timeline.durations, timeline.batch_sizes, timeline.workers["a"].speeds):
        assert len(lists) == len(timeline.iterations)
    for one in figures.workers:
        assert one.waiting_share is None or 0 <= one.waiting_share <= 1
        assert one.seconds_per_sample.median is None or (
            one.seconds_per_sample.minimum
            <= one.seconds_per_sample.median * (1 + 1e-9)
            <= one.seconds_per_sample.maximum * (1 + 2e-9)
        )


# -- statistics


values = st.lists(
    st.lists(st.floats(-1e6, 1e6) | st.just(float("nan")), min_size=4, max_size=4), min_size=1, max_size=9
).map(np.array)


@given(values)
def test_others_are_all_but_oneself(array):
    """Each value gets the median of the others in its row."""
    found = others_median(array)
    for row, medians in zip(array, found, strict=True):
        for i, ours in enumerate(medians):
            others = np.delete(row, i)
            others = others[~np.isnan(others)]
            if len(others):
                assert ours == pytest.approx(np.median(others), abs=1e-6)
            else:
                assert np.isnan(ours)


# -- what an iteration's time is spent on


@given(
    st.lists(
        st.lists(
            st.tuples(st.floats(0.001, 10), st.just(np.nan) | st.floats(0, 0.999)), min_size=3, max_size=3
        ),
        min_size=1,
        max_size=8,
    )
)
def test_the_parts_of_a_workers_time_are_all_of_it(played):
    """Computing, communicating and waiting sum to the iterations' time, on average and in each iteration."""
    view = viewed(
        iteration(
            number,
            [4, 4, 4],
            [time for time, _ in workers],
            communication=[time * share for time, share in workers],
        )
        for number, workers in enumerate(played)
    )
    durations = [max(time for time, _ in workers) for workers in played]
    figures = by_name(view.figures())
    timeline = view.timeline(10, [*figures])
    for i, name in enumerate(sorted(figures)):
        parts, line = figures[name].time_parts, timeline.workers[name]
        shares = [workers[i][1] for workers in played]
        whole = parts.computing + (parts.communicating or 0) + parts.waiting
        assert whole == pytest.approx(np.mean(durations))
        assert (parts.communicating is None) == bool(np.isnan(shares).all())
        assert [share is None for share in line.communication_times] == [bool(np.isnan(x)) for x in shares]
        for duration, *segments in zip(
            durations, line.computing_times, line.communication_times, line.waiting_times, strict=True
        ):
            assert sum(segment or 0 for segment in segments) == pytest.approx(duration)
        if parts.communicating is not None:
            known = [workers[i][0] * workers[i][1] for workers in played if not np.isnan(workers[i][1])]
            assert parts.communicating == pytest.approx(sum(known) / len(played))
