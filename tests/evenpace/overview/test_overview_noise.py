"""The gradient noise in a job's figures, against records whose true noise is known."""

from dataclasses import replace

import pytest

from evenpace.overview.job_view import JobView
from tests.evenpace.overview.noisy_gradients import VAR, with_norms
from tests.evenpace.overview.played import iteration

BATCH = 100


def played(iterations, first=0, sizes=(70, 30)):
    """Make iterations of two workers with unequal parts, without norms."""
    return [iteration(first + k, sizes, [1.0, 1.0]) for k in range(iterations)]


def viewed(iterations):
    """Make a view of iterations of a job whose script has batches of `BATCH`."""
    view = JobView(BATCH)
    view.add(iterations)
    return view


def test_the_noise_scale_is_that_of_the_gradients():
    """The interval of two standard errors has the true scale, of twice the batch, and the variance is right.

    An iteration with twice the batch does the work of 1.5 then.
    """
    figures = viewed(with_norms(played(400), 2.0 * BATCH)).figures()
    assert figures.noise_known
    assert figures.noise_scale_least < 2 * BATCH < figures.noise_scale_most
    assert figures.noise_var == pytest.approx(VAR, rel=0.05)
    assert figures.noise_sqr == pytest.approx(VAR / (2 * BATCH), rel=0.25)  # errors here are about a tenth
    assert figures.noise_iterations == 400
    scale = figures.noise_scale
    assert figures.work_of_twice_least < 1.5 < figures.work_of_twice_most
    assert figures.work_of_twice == pytest.approx(2 * (scale + BATCH) / (scale + 2 * BATCH), rel=1e-12)
    assert "a batch twice as large would do 1." in figures.noise_text


def test_each_step_counts_once():
    """A step that the next record tells of again, or that is repeated after a rewind, adds nothing."""
    records = with_norms(played(60), 100.0)
    told_again = [
        replace(after, norms=before.norms) for before, after in zip(records, played(60, 1), strict=True)
    ]
    once, again = viewed(records), viewed(records)
    again.add(told_again[-1:])
    again.add(replace(record, attempt=1) for record in records[30:])
    ours, theirs = again.figures(), once.figures()
    assert ours.noise_iterations == 60
    assert (ours.noise_sqr, ours.noise_var) == (theirs.noise_sqr, theirs.noise_var)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (played(29), "not known yet, after 0 measured iterations"),
        (played(30), "not measured: it takes two gradients in each step"),
        (with_norms(played(3), 100.0), "not known yet, after 3 measured iterations"),
    ],
)
def test_little_is_known_without_norms_or_of_few(records, said):
    """A job that measures no norms has no figures of noise, and after a while says what they take."""
    figures = viewed(records).figures()
    assert figures.noise_text == said
    assert not figures.noise_known
    assert figures.noise_scale_most is None
    if records[0].norms is None:
        assert figures.noise_scale is figures.noise_scale_least is figures.work_of_twice is None


def test_the_timeline_has_the_scale_as_it_was_known_then():
    """Points have the scale of a view that ends there, and None while it was not known."""
    records = with_norms(played(300), 100.0)
    timeline = viewed(records).timeline(points=1000)
    assert timeline.totals == [BATCH] * 300
    assert timeline.noise_scales[:9] == [None] * 9
    for count in (150, 300):
        then = viewed(records[:count]).figures()
        assert then.noise_known
        assert timeline.noise_scales[count - 1] == then.noise_scale


def grown(first_size=BATCH):
    """Make a view of iterations whose batch grows fourfold after 200 of 400; the noise scale is known."""
    records = [*played(200), *played(200, 200, sizes=(280, 120))]
    view = JobView(first_size)
    view.add(with_norms(records, 2.0 * BATCH))
    return view


def test_the_timeline_has_efficiency_and_goodput_by_the_noise_of_then():
    """Samples of the script's size have an efficiency of 1, and of a larger batch less."""
    timeline = grown().timeline(points=1000)
    for k, (scale, total) in enumerate(zip(timeline.noise_scales, timeline.totals, strict=True)):
        if scale is None:
            assert timeline.efficiencies[k] is timeline.goodputs[k] is None
        else:
            efficiency = (scale + BATCH) / (scale + total)
            assert timeline.efficiencies[k] == pytest.approx(efficiency, rel=1e-12)
            assert timeline.goodputs[k] == pytest.approx(timeline.throughputs[k] * efficiency, rel=1e-12)
    assert timeline.efficiencies[199] == 1
    assert timeline.efficiencies[-1] == pytest.approx(0.5, rel=0.1)  # the scale is known to a tenth or so


@pytest.mark.parametrize("view", [viewed(played(100)), grown(None), JobView(BATCH)])
def test_there_is_no_efficiency_where_the_noise_or_the_first_size_is_not_known(view):
    """The other figures are there all the same."""
    figures, timeline = view.figures(), view.timeline()
    assert figures.efficiency is figures.goodput is None
    assert set(timeline.efficiencies) | set(timeline.goodputs) <= {None}
    assert (figures.throughput is None) == (figures.iterations == 0)
