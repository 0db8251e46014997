"""Sizers: what each chooses in a situation, whatever that is."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.sizers import SIZERS, Situation, Sizes, Sizing
from idl.noise import Noise
from idl.plan import JobSpec

SPEC = JobSpec(100_000, 64)
NOTHING = Noise(math.nan, math.nan, math.inf, math.inf)


def situation(size=64, noise=NOTHING, iteration=100, epoch=0, least=64, most=1024, step=1, seconds=None):
    """A situation; by default an iteration takes 0.1 s and 1 ms for each sample."""
    times = seconds or (lambda sizes: [0.1 + 0.001 * one for one in sizes])
    return Situation(iteration, epoch, size, least, most, step, noise, times)


def chosen(name, at, spec=SPEC, **options):
    """Return the size that a sizer chooses; the present one where it chooses none."""
    choice = Sizing(name, **options).make(spec).choose(at)
    return at.size if choice is None else choice.size


noises = st.builds(
    Noise,
    sqr=st.floats(-10.0, 10.0),
    var=st.floats(-10.0, 1e4),
    sqr_error=st.floats(0.0, 10.0) | st.just(math.inf),
    var_error=st.floats(0.0, 1e3) | st.just(math.inf),
)


@st.composite
def situations(draw):
    """Any situation that is possible."""
    least = draw(st.integers(1, 1000))
    most = draw(st.integers(least, 5000))
    return situation(
        draw(st.integers(least, most)),
        draw(st.just(NOTHING) | noises),
        draw(st.integers(0, 1000)),
        draw(st.integers(0, 50)),
        least,
        most,
        draw(st.sampled_from([1, 2, 8, 30])),
    )


@given(st.sampled_from(sorted(SIZERS.keys() - {"fixed", "schedule"})), situations())
def test_a_choice_is_within_the_bounds_and_says_why(name, at):
    """Whatever is known, or not, of noise and times."""
    choice = Sizing(name).make(SPEC).choose(at)
    assert choice is None or (at.least <= choice.size <= at.most and choice.why)


@pytest.mark.parametrize("name", sorted(SIZERS.keys() - {"schedule"}))
def test_no_size_is_changed_while_nothing_is_known_of_the_noise(name):
    """With a scale between 0 and infinity no other size is surely better."""
    assert chosen(name, situation(256)) == 256


def goodput(size, scale):
    """Return the goodput of a size, in any unit, with the times of `situation`."""
    return size / (0.1 + 0.001 * size) / (scale + size)


@given(st.floats(1.0, 1e5), st.integers(64, 1024), st.floats(0.0, 0.3))
def test_repeated_choices_end_where_no_size_promises_more(scale, size, promise):
    """Where they end, no size of up to twice or down to half as much has that much more goodput."""
    sizer = Sizing("goodput", promise=promise).make(SPEC)
    for _ in range(50):
        choice = sizer.choose(situation(size, Noise(1.0, scale)))
        if choice.size == size:
            break
        assert goodput(choice.size, scale) >= (1 + promise) * goodput(size, scale) * (1 - 1e-9)
        size = choice.size
    else:
        pytest.fail("it changes for ever")
    near = range(max(64, size // 2), min(1024, 2 * size) + 1)
    best = max(goodput(other, scale) for other in near)
    # Between two of the sizes that are tried, goodput differs by less than 1%.
    assert goodput(size, scale) > best / (1 + promise) * 0.99


def test_what_is_not_known_of_the_noise_counts_against_a_change():
    """A larger batch must pay with the smallest scale, a smaller one with the largest."""
    sure, unsure = Noise(1.0, 1000.0, 0.01, 10.0), Noise(1.0, 1000.0, 0.45, 400.0)
    assert chosen("goodput", situation(64, sure)) == 128
    assert chosen("goodput", situation(512, unsure, least=64)) == 512
    small = Noise(10.0, 100.0)
    assert (
        chosen("goodput", situation(1024, small, seconds=lambda sizes: [0.001 * one for one in sizes])) == 512
    )
    wide = Noise(1.0, 10.0, 0.6, 1.0)  # the scale may be infinite
    assert (
        chosen("goodput", situation(1024, wide, seconds=lambda sizes: [0.001 * one for one in sizes])) == 1024
    )


@given(st.floats(0.02, 0.95), st.floats(10.0, 1e4))
def test_the_similarity_of_the_size_that_is_chosen_is_the_threshold(threshold, scale):
    """JABAS's rule in closed form, from any size, in at most so many doublings."""
    noise, size = Noise(1.0, scale), 64
    for _ in range(40):
        size = chosen(
            "similarity", situation(size, noise, least=1, most=10**8), similarity=threshold, promise=0.0
        )
    wanted = 2 * threshold * scale / (1 - threshold)
    assert size == pytest.approx(max(1, wanted), abs=0.6)


def test_a_size_stays_whose_similarity_may_be_the_threshold():
    """As far as the estimate says."""
    noise = Noise(1.0, 1000.0, 0.1, 0.0)  # the scale is 833 to 1,250
    sizes = {
        size: chosen("similarity", situation(size, noise), similarity=0.1) for size in (160, 200, 270, 300)
    }
    assert sizes == {160: 222, 200: 200, 270: 270, 300: 222}


def test_the_published_rule_goes_up_and_down_by_a_tenth():
    """Every 100 iterations, up while the similarity is under the threshold; at least one step."""
    noise = Noise(1.0, 1000.0)  # a similarity of 0.1 at 222 samples
    assert chosen("similarity_steps", situation(200, noise), similarity=0.1) == 220
    assert chosen("similarity_steps", situation(300, noise), similarity=0.1) == 270
    assert chosen("similarity_steps", situation(128, noise, step=64), similarity=0.1) == 192
    assert Sizing("similarity_steps").make(SPEC).every == 100


@pytest.mark.parametrize(
    ("text", "first", "bounds"),
    [
        (None, 64, (64, 1024)),
        ("32", 32, (32, 512)),
        ("32:96", 64, (32, 96)),
        ("100:200000", 100, (100, 100_000)),
        ("8:16", 16, (8, 16)),
    ],
)
def test_sizes_are_bounds_or_a_beginning(text, first, bounds):
    """A job begins with the script's size, if within the bounds; without any they are 16 times apart."""
    sizing = Sizing(batch_size=None if text is None else Sizes.parse(text))
    assert (sizing.first(SPEC), sizing.bounds(SPEC)) == (first, bounds)
    if text is not None:
        assert str(Sizes.parse(text)) == text
