"""The noise of gradients: exact identities of its statistics, and estimates of a known truth.

Gradients are those of a quadratic loss of 50 dimensions or more: the mean over b samples of H(x - a_j), with
a_j normal, is the true gradient plus normal noise with the covariance Σ/b, so that both truths are known.
"""

import functools
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchsize_manager.storage.json_values import from_json, to_json
from idl.noise import GradientNorms, Noise, NoiseEstimate

SPLITS = st.lists(st.integers(0, 64), min_size=2, max_size=8).filter(lambda split: sum(map(bool, split)) > 1)
SEEDS = st.integers(0, 2**32 - 1)


class Quadratic:
    """A point of a quadratic loss: its true gradient and the deviation of a sample's, (dimensions,) each."""

    def __init__(self, rng, dimensions, batch, ratio):
        self.rng = rng
        self.deviations = rng.uniform(0.5, 1.5, dimensions)
        self.var = float(np.sum(self.deviations**2))
        self.sqr = self.var / (ratio * batch)  # so that the noise scale is `ratio` batches
        direction = rng.normal(size=dimensions)
        self.gradient = direction * math.sqrt(self.sqr) / np.linalg.norm(direction)

    def draw(self, split):
        """Draw the mean gradient of each contribution, (contributions, dimensions); zeros without samples."""
        counts = np.array(split)[:, None]
        noise = self.rng.normal(size=(len(split), len(self.deviations))) * self.deviations
        return np.where(counts > 0, self.gradient + noise / np.sqrt(np.maximum(counts, 1)), 0.0)


def norms_of(split, gradients):
    """Return the norms of contributions, (contributions, dimensions), and of their weighted sum."""
    whole = np.asarray(split) @ gradients / sum(split)
    return GradientNorms.of(
        zip(split, np.sum(gradients**2, axis=1).tolist(), strict=True), float(whole @ whole)
    )


def observed(problem, splits, estimate=None):
    """Return an estimate after an iteration with each of the splits."""
    estimate = estimate or NoiseEstimate()
    for split in splits:
        estimate = estimate.observe(norms_of(split, problem.draw(split)))
    return estimate


def close(one, other):
    """Whether two norms are the same but for rounding, against the size of what they are sums of."""
    return (one.contributions, one.samples) == (other.contributions, other.samples) and (
        one.weighted == pytest.approx(other.weighted, rel=1e-12)
        and one.squared == pytest.approx(other.squared, rel=1e-12, abs=1e-12 * one.weighted)
    )


# -- One iteration


@given(SPLITS, SEEDS)
def test_an_iterations_estimate_is_the_analysis_of_variance(split, seed):
    """S is the weighted spread of the contributions about their mean over n - 1, and G is |g|² - S/B."""
    gradients = np.random.default_rng(seed).normal(size=(len(split), 50))
    norms = norms_of(split, gradients)

    whole = np.asarray(split) @ gradients / sum(split)
    spread = np.asarray(split) @ np.sum((gradients - whole) ** 2, axis=1)
    var = spread / (np.count_nonzero(split) - 1)
    assert norms.var == pytest.approx(var, rel=1e-9)
    assert norms.sqr == pytest.approx(whole @ whole - var / sum(split), rel=1e-9, abs=1e-9)


@given(SPLITS, SEEDS, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_norms_of_shards_add_up_to_the_wholes(split, seed, cuts):
    """Shards that hold parts of the elements, some of them none, sum to one that holds all."""
    gradients = np.random.default_rng(seed).normal(size=(len(split), 60))

    total, *others = (norms_of(split, gradients[:, a:b]) for a, b in pairwise([0, *sorted(cuts), 60]))
    for shard in others:
        total += shard
    assert close(total, norms_of(split, gradients))


@pytest.mark.parametrize("other", [GradientNorms(2, 10, 3.0, 1.0), GradientNorms(3, 9, 3.0, 1.0)])
def test_norms_of_other_contributions_are_not_added(other):
    """Shards that saw different contributions of an iteration have no sum; the error names what differs."""
    with pytest.raises(ValueError, match=r"(contributions 2|samples 9): must be those of the other part"):
        GradientNorms(3, 10, 3.0, 1.0) + other


@given(SPLITS, SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_contributions_does_not_matter(split, seed, random):
    """Any permutation of the workers gives the same norms."""
    gradients = np.random.default_rng(seed).normal(size=(len(split), 50))
    order = list(range(len(split)))
    random.shuffle(order)

    assert close(norms_of([split[i] for i in order], gradients[order]), norms_of(split, gradients))


@given(SPLITS, SEEDS, st.floats(1e-6, 1e6))
def test_scaled_gradients_scale_both_and_leave_the_noise_scale(split, seed, factor):
    """Gradients times c give c² times both estimates, and intervals and noise scale as before."""
    problem = Quadratic(np.random.default_rng(seed), 50, sum(split), 0.5)
    plain = scaled = NoiseEstimate()
    for _ in range(15):
        gradients = problem.draw(split)
        plain = plain.observe(norms_of(split, gradients))
        scaled = scaled.observe(norms_of(split, factor * gradients))

    one, other = plain.noise, scaled.noise
    assert (other.sqr, other.var) == pytest.approx((factor**2 * one.sqr, factor**2 * one.var), rel=1e-6)
    assert other.scale == pytest.approx(one.scale, rel=1e-6)
    assert other.interval() == pytest.approx(one.interval(), rel=1e-4)


def test_contributions_without_samples_do_not_count():
    """A worker without samples changes nothing, even if what it sent is not a number."""
    with_it = GradientNorms.of([(8, 2.0), (0, math.nan), (4, 5.0)], 1.5)

    assert with_it == GradientNorms.of([(8, 2.0), (4, 5.0)], 1.5) == GradientNorms(2, 12, 36.0, 1.5)


def test_one_contribution_says_nothing():
    """With one worker without micro-batches there is no estimate, and the state stays as it is."""
    norms = GradientNorms.of([(8, 2.0), (0, 0.0)], 2.0)
    before = NoiseEstimate().observe(GradientNorms.of([(8, 2.0), (4, 5.0)], 1.5))

    assert math.isnan(norms.var)
    assert math.isnan(norms.sqr)
    assert before.observe(norms) == before
    assert before.observe(GradientNorms.of([], 0.0)) == before


@given(st.lists(st.integers(1, 64), min_size=2, max_size=8), SEEDS)
def test_equal_gradients_have_no_variance(split, seed):
    """Where all contributions are the same, var is 0 and sqr their squared norm, but for rounding."""
    gradient = np.random.default_rng(seed).normal(size=50)
    norms = norms_of(split, np.tile(gradient, (len(split), 1)))

    assert norms.var == pytest.approx(0, abs=1e-12 * norms.weighted)
    assert norms.sqr == pytest.approx(gradient @ gradient, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2, 1.0, 1.0), "contributions 3: must be from 1 to samples, 2"),
        ((0, 2, 1.0, 1.0), "contributions 0: must be from 1 to samples, 2"),
        ((-1, -1, 0.0, 0.0), "contributions -1: must be"),
        ((2, 8, -1.0, 1.0), "weighted -1.0: must be at least 0"),
        ((2, 8, 1.0, -2.0), "squared -2.0: must be at least 0"),
    ],
)
def test_norms_that_cannot_be_are_refused(arguments, message):
    """Negative numbers, and contributions without samples, are errors that name the value."""
    with pytest.raises(ValueError, match=message):
        GradientNorms(*arguments)


def test_a_negative_contribution_is_refused():
    """Samples and norms of a contribution are at least 0."""
    with pytest.raises(ValueError, match=r"contribution of -3 samples, norm 1.0: must be at least 0"):
        GradientNorms.of([(8, 1.0), (-3, 1.0)], 1.0)


# -- Consecutive gradients


@given(st.integers(1, 64), st.integers(1, 64), SEEDS)
def test_two_consecutive_gradients_are_two_contributions(first, second, seed):
    """Their norms and that of their difference give what two workers' gradients would."""
    a, b = gradients = np.random.default_rng(seed).normal(size=(2, 50))
    norms = GradientNorms.of_consecutive((first, a @ a), (second, b @ b), (a - b) @ (a - b))

    assert close(norms, norms_of([first, second], gradients))


def test_a_gradient_without_a_predecessor_says_nothing():
    """A first iteration, or one without samples, gives no pair, but the norms of the one gradient."""
    assert GradientNorms.of_consecutive((0, 0.0), (8, 2.5), 2.5) == GradientNorms(1, 8, 20.0, 2.5)


def test_opposite_gradients_have_no_negative_norm():
    """Rounding in the difference of opposite gradients gives a weighted sum of norm 0."""
    norms = GradientNorms.of_consecutive((1, 0.1), (1, 0.1), 0.4000000000000001)

    assert norms.squared == 0
    assert norms.var == pytest.approx(0.2)


# -- Estimates over iterations


@settings(deadline=None, derandomize=True, max_examples=40)
@given(SPLITS, st.integers(50, 100), st.floats(0.05, 0.5), SEEDS)
def test_estimates_are_near_the_truth_under_any_split(split, dimensions, ratio, seed):
    """After 200 iterations both, and the noise scale, are within 10% of the truth.

    With 50 dimensions and more, two contributions, and φ up to half a batch, the standard deviation is at
    most 1.9% for var and 2.6% for sqr: 10% are four of them or more, even for the ratio.
    """
    problem = Quadratic(np.random.default_rng(seed), dimensions, sum(split), ratio)
    noise = observed(problem, [split] * 200).noise

    assert noise.var == pytest.approx(problem.var, rel=0.1)
    assert noise.sqr == pytest.approx(problem.sqr, rel=0.1)
    assert noise.scale == pytest.approx(ratio * sum(split), rel=0.1)


def coverage(splits, ratio, batch, runs=300, dimensions=50, consecutive=False):
    """Return the shares of runs in which the true var, sqr and noise scale are within two standard errors."""
    rng = np.random.default_rng(7)
    inside = np.zeros(3)
    for _ in range(runs):
        problem = Quadratic(rng, dimensions, batch, ratio)
        noise = of_pairs(problem, splits) if consecutive else observed(problem, splits).noise
        low, high = noise.interval()
        inside += (
            abs(noise.var - problem.var) < 2 * noise.var_error,
            abs(noise.sqr - problem.sqr) < 2 * noise.sqr_error,
            low < problem.var / problem.sqr < high,
        )
    return inside / runs


def of_pairs(problem, sizes):
    """Return the noise that one worker's gradients of these sizes give, two after two."""
    estimate = NoiseEstimate()
    for first, second in zip(sizes[::2], sizes[1::2], strict=True):
        a, b = problem.draw([first])[0], problem.draw([second])[0]
        norms = GradientNorms.of_consecutive((first, a @ a), (second, b @ b), (a - b) @ (a - b))
        estimate = estimate.observe(norms)
    return estimate.noise


CHANGING = [[8, 16, 32, 200], [4, 8, 16, 100], [64, 64, 128], [16] * 24, [1, 3, 4]] * 20


@pytest.mark.parametrize("ratio", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("splits", [[[8, 16, 32, 200]] * 100, [[40, 2]] * 30, CHANGING])
def test_two_standard_errors_hold_the_truth(splits, ratio):
    """With few and many iterations, equal and changing batches, in 90 to 98% of 300 runs.

    Of 95.4%, 300 runs have a standard deviation of 1.2%; t-distributed means of 30 hold 94.5%.
    """
    shares = coverage(splits, ratio, batch=max(map(sum, splits)))

    assert shares == pytest.approx(np.full(3, 0.94), abs=0.04)


def test_two_standard_errors_hold_the_truth_for_consecutive_gradients():
    """The same for one worker, whose batches change their size."""
    shares = coverage([64, 64, 96, 32] * 50, 1.0, batch=64, consecutive=True)

    assert shares == pytest.approx(np.full(3, 0.94), abs=0.04)


def test_iterations_weigh_as_much_as_they_say():
    """Small batches with few contributions among large ones hardly spoil what the large ones say.

    The large have 7 degrees of freedom and 128 times the samples. The mean with equal weights has 1.5 times
    the deviation of var, √(8/7 · 8)/2, and about 50 times that of sqr.
    """
    problem, deviations = Quadratic(np.random.default_rng(1), 50, 512, 0.5), []
    for splits in ([[64] * 8] * 50, [[64] * 8, [2, 2]] * 50):
        means, plain = [], []
        for _ in range(200):
            norms = [norms_of(split, problem.draw(split)) for split in splits]
            noise = functools.reduce(NoiseEstimate.observe, norms, NoiseEstimate(share=1e9)).noise
            means.append((noise.var, noise.sqr))
            plain.append(np.mean([(one.var, one.sqr) for one in norms], axis=0))
        deviations += [np.std(means, axis=0), np.std(plain, axis=0)]
    large, _, mixed, unweighted = deviations

    assert np.all(mixed < 1.3 * large)
    assert unweighted[0] > 1.3 * mixed[0]
    assert unweighted[1] > 20 * mixed[1]


def test_a_change_is_followed_within_two_and_a_half_horizons():
    """When var becomes four times as large, the estimate is within 15% of it 2.5 horizons later.

    8% of the step, 6% of the new value, are left then; the standard deviation is 1%.
    """
    problem = Quadratic(np.random.default_rng(3), 80, 128, 0.3)
    split = [16, 32, 80]
    before = observed(problem, [split] * 300, NoiseEstimate(horizon=40))
    assert before.noise.var == pytest.approx(problem.var, rel=0.15)

    problem.deviations *= 2
    one_horizon = observed(problem, [split] * 40, before)
    after = observed(problem, [split] * 60, one_horizon)
    assert after.noise.var == pytest.approx(4 * problem.var, rel=0.15)
    # The spread tells that the truth is moving.
    assert one_horizon.noise.var_error > 5 * before.noise.var_error
    assert after.noise.sqr == pytest.approx(problem.sqr, rel=0.25)


def test_the_first_iterations_estimate_is_its_own():
    """Whatever the horizon, a start from zeros does not draw the estimate down."""
    norms = norms_of([8, 24], Quadratic(np.random.default_rng(5), 50, 32, 0.3).draw([8, 24]))

    for horizon in (10.0, 1e6):
        noise = NoiseEstimate(horizon).observe(norms).noise
        assert (noise.sqr, noise.var) == pytest.approx((norms.sqr, norms.var))


def test_errors_are_those_of_means_where_iterations_weigh_the_same():
    """With one split and no decay to speak of they are the standard errors of plain means, s/√k."""
    problem = Quadratic(np.random.default_rng(9), 50, 32, 0.5)
    norms = [norms_of([8, 24], problem.draw([8, 24])) for _ in range(12)]
    noise = functools.reduce(NoiseEstimate.observe, norms, NoiseEstimate(horizon=1e9, share=1e9)).noise

    both = np.cov([[one.sqr for one in norms], [one.var for one in norms]]) / 12
    errors = (noise.sqr_error**2, noise.covariance, noise.var_error**2)
    assert errors == pytest.approx((both[0, 0], both[0, 1], both[1, 1]), rel=1e-5)


def test_an_estimate_that_is_young_forgets_its_first_iterations_sooner():
    """A gradient whose square falls tenfold at the 20th iteration is followed by the 60th."""
    problem = Quadratic(np.random.default_rng(4), 50, 64, 0.1)
    split = [16, 16, 32]
    before = observed(problem, [split] * 20), observed(problem, [split] * 20, NoiseEstimate(share=1e9))
    problem.gradient, problem.sqr = problem.gradient / 10**0.5, problem.sqr / 10
    young, fixed = (observed(problem, [split] * 40, one).noise for one in before)
    assert young.sqr == pytest.approx(problem.sqr, rel=0.5)
    assert fixed.sqr > 3 * problem.sqr


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e200])
def test_an_iteration_with_a_broken_norm_is_skipped_and_counted(broken):
    """NaN, infinity, and what is too large to be squared, leave the estimate as it was."""
    problem = Quadratic(np.random.default_rng(6), 50, 32, 0.3)
    before = observed(problem, [[8, 24]] * 20)
    after = before.observe(GradientNorms.of([(8, broken), (24, 1.0)], broken))

    assert (before.skipped, after.skipped) == (0, 1)
    assert after.noise == before.noise
    assert after.observed == 20


@settings(deadline=None)
@given(SPLITS, SEEDS)
def test_a_state_that_was_saved_as_json_goes_on_the_same(split, seed):
    """Kept in the manager's saved state and read again, it gives the same estimates, to the bit."""
    problem = Quadratic(np.random.default_rng(seed), 50, sum(split), 0.5)
    state = observed(problem, [split] * 5)
    restored = from_json(NoiseEstimate, to_json(state))
    norms = norms_of(split, problem.draw(split))

    assert restored == state
    assert restored.observe(norms).noise == state.observe(norms).noise
    json.dumps(json.loads(to_json(NoiseEstimate())), allow_nan=False)


@pytest.mark.parametrize("horizon", [9.0, 0.0, -1.0, math.inf, math.nan])
def test_a_horizon_that_holds_too_little_is_refused(horizon):
    """Fewer than ten iterations, or no number, are an error that says so."""
    with pytest.raises(ValueError, match=r"horizon .*: must be a number from 10"):
        NoiseEstimate(horizon)


def test_little_is_not_taken_for_knowledge():
    """Nothing is known before the first iteration, nor after a few, nor while noise hides the gradient."""
    problem = Quadratic(np.random.default_rng(8), 50, 32, 0.5)
    hidden = Quadratic(np.random.default_rng(8), 50, 32, 200.0)

    assert not NoiseEstimate().noise.known
    assert NoiseEstimate().noise.interval() == (0.0, math.inf)
    assert not observed(problem, [[8, 24]] * 9).noise.known
    assert observed(problem, [[8, 24]] * 100).noise.known
    unseen = observed(hidden, [[8, 24]] * 100).noise
    assert not unseen.known
    # But the noise is known to be large: five batches' efficiency is hardly less than one's.
    assert unseen.interval()[0] > 5 * 32
    assert unseen.interval()[1] == math.inf
    assert unseen.efficiency_interval(160, 32)[0] > 0.5


# -- The value


SIZES = st.floats(1, 1e6)


@given(st.floats(1e-6, 1e6), st.floats(0, 1e6), SIZES, SIZES)
def test_efficiency_is_polluxs(sqr, var, batch, baseline):
    """It is (φ + M₀)/(φ + M): 1 at the baseline, falling with the batch, and M₀/M without noise."""
    noise = Noise(sqr, var)

    assert noise.efficiency(batch, baseline) == pytest.approx((var / sqr + baseline) / (var / sqr + batch))
    assert noise.efficiency(baseline, baseline) == 1
    assert Noise(sqr, 0.0).efficiency(batch, baseline) == baseline / batch


def test_similarity_is_the_cosine_of_two_halves():
    """1/(1 + 2φ/B): a third where φ is B, and 1 without noise."""
    assert Noise(2.0, 64.0).similarity(32) == pytest.approx(1 / 3)
    assert Noise(2.0, 0.0).similarity(32) == 1


@pytest.mark.parametrize(
    ("sqr", "var", "scale", "efficiency", "similarity"),
    [
        (0.0, 1.0, math.inf, 1.0, 0.0),
        (-1.0, 1.0, math.inf, 1.0, 0.0),
        (1.0, 0.0, 0.0, 0.5, 1.0),
        (1.0, -1.0, 0.0, 0.5, 1.0),
        (1.0, math.inf, math.inf, 1.0, 0.0),
        (math.inf, 1.0, 0.0, 0.5, 1.0),
        (0.0, 0.0, math.nan, math.nan, math.nan),
        (-1.0, -1.0, math.nan, math.nan, math.nan),
        (math.nan, 1.0, math.nan, math.nan, math.nan),
        (1.0, math.nan, math.nan, math.nan, math.nan),
        (math.inf, math.inf, math.nan, math.nan, math.nan),
    ],
)
def test_values_without_a_ratio(sqr, var, scale, efficiency, similarity):
    """No positive sqr is a noise scale without end, no positive var is none, and NaN where neither is."""
    noise = Noise(sqr, var, 0.1, 0.1)

    assert (noise.scale, noise.efficiency(64, 32), noise.similarity(32)) == pytest.approx(
        (scale, efficiency, similarity), nan_ok=True
    )
    low, high = noise.interval()
    assert 0 <= low <= high
    if not math.isnan(scale):
        assert high >= scale or not (math.isfinite(sqr) and math.isfinite(var))


def test_an_exact_value_is_known():
    """Without errors the interval is the noise scale; two zeros have none."""
    assert Noise(2.0, 64.0).interval() == pytest.approx((32, 32))
    assert Noise(2.0, 64.0).known
    assert Noise(2.0, 0.0).interval() == (0, 0)
    assert Noise(2.0, 0.0).known
    assert Noise(0.0, 2.0).interval() == (math.inf, math.inf)
    assert Noise(0.0, 0.0).interval() == (0, math.inf)
    assert not Noise(0.0, 0.0).known


def test_a_noise_scale_is_known_to_a_factor_of_two():
    """With a fifth of error its interval is 0.71 to 1.67, which is known; with two fifths, 0.56 to 5, not."""
    assert Noise(1.0, 1.0, 0.2).interval() == pytest.approx((1 / 1.4, 1 / 0.6))
    assert Noise(1.0, 1.0, 0.2).known
    assert Noise(1.0, 1.0, 0.4).interval() == pytest.approx((1 / 1.8, 5))
    assert not Noise(1.0, 1.0, 0.4).known


POSITIVE = st.floats(1e-3, 1e3)


@given(POSITIVE, POSITIVE, st.floats(0.001, 3), st.floats(0.001, 3), st.floats(-1, 1))
def test_an_intervals_ends_are_two_standard_errors_away(sqr, var, sqr_part, var_part, correlation):
    """At either end x, the difference of var and x sqr is twice its own standard error."""
    noise = Noise(sqr, var, sqr_part * sqr, var_part * var, correlation * sqr_part * sqr * var_part * var)
    low, high = noise.interval()

    assert low <= noise.scale * (1 + 1e-9)
    assert high >= noise.scale * (1 - 1e-9)
    assert (low == 0) == (2 * var_part >= 1)
    assert (high == math.inf) == (2 * sqr_part >= 1)
    assume(abs(2 * var_part - 1) > 0.01 and abs(2 * sqr_part - 1) > 0.01 and abs(correlation) < 0.99)
    for end in {low, high} - {0, math.inf}:
        variance = noise.var_error**2 - 2 * end * noise.covariance + (end * noise.sqr_error) ** 2
        assert (var - end * sqr) ** 2 == pytest.approx(4 * variance, rel=1e-3)


@given(POSITIVE, POSITIVE, st.floats(-0.9, 0.9))
def test_small_errors_give_the_delta_methods_interval(sqr, var, correlation):
    """With errors of a thousandth, half the interval is two of the delta method's standard errors."""
    part = 0.001
    noise = Noise(sqr, var, part * sqr, part * var, correlation * part * sqr * part * var)
    low, high = noise.interval()

    assert (high - low) / 2 == pytest.approx(
        2 * noise.scale * part * math.sqrt(2 - 2 * correlation), rel=0.02
    )


@given(POSITIVE, POSITIVE, st.floats(0, 0.6), SIZES, SIZES)
def test_the_efficiency_lies_in_its_interval(sqr, var, part, batch, baseline):
    """It is monotone in the noise scale, so that the ends of the one are those of the other."""
    noise = Noise(sqr, var, part * sqr, part * var)
    low, high = noise.efficiency_interval(batch, baseline)

    assert low <= noise.efficiency(batch, baseline) * (1 + 1e-9)
    assert high >= noise.efficiency(batch, baseline) * (1 - 1e-9)
    limits = sorted((1.0, baseline / batch))
    assert limits[0] * (1 - 1e-9) <= low <= high <= limits[1] * (1 + 1e-9)


@pytest.mark.parametrize("size", [0, -1.0, math.nan])
def test_sizes_of_batches_are_above_zero(size):
    """A batch without samples has no efficiency and no similarity; the error names the argument."""
    noise = Noise(2.0, 64.0)

    for call in (noise.efficiency, noise.efficiency_interval):
        with pytest.raises(ValueError, match=rf"batch {size}: must be above 0"):
            call(size, 32)
        with pytest.raises(ValueError, match=rf"baseline {size}: must be above 0"):
            call(32, size)
    with pytest.raises(ValueError, match=rf"batch {size}: must be above 0"):
        noise.similarity(size)
