"""Goodput and the best configuration of a placement, against the definition worked out one by one."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.noise import Noise
from scheduler.goodput import Goodput, Limits
from scheduler.throughput import Throughput

THROUGHPUT = Throughput(0.05, 0.002, 0.2, 0.01, 0.04, 0.003, 2.0)
LIMITS = Limits(128, 4096, 32, 512)
GOODPUT = Goodput(THROUGHPUT, Noise(1.0, 1000.0), LIMITS)

limits = st.builds(
    lambda initial, most, least, local: Limits(initial, initial * most, least, least * local),
    st.integers(1, 300),
    st.integers(1, 100),
    st.integers(1, 100),
    st.integers(1, 50),
)
throughputs = st.builds(
    Throughput,
    *[
        st.floats(1e-4, 1),
        st.floats(1e-5, 0.1),
        *[st.floats(1e-4, 1), st.floats(0, 0.1)] * 2,
        st.floats(1, 10),
    ],
)
noises = st.builds(Noise, st.floats(0.01, 100), st.floats(0, 1e6))
placements = st.tuples(st.integers(1, 8), st.integers(0, 24)).map(lambda drawn: (drawn[0], sum(drawn)))


def test_goodput_worked_out_by_hand():
    """It is samples by seconds, each sample worth (φ + M₀)/(φ + M) of one in the initial batch."""
    assert GOODPUT(1, 1, 128) == pytest.approx(128 / (0.05 + 0.256))
    assert GOODPUT(2, 4, 100, 1) == pytest.approx(800 / (0.25 + math.hypot(0.25, 0.22)) * 1128 / 1800)


@given(throughputs, noises, limits, placements)
def test_the_best_is_the_best_of_all_candidates(throughput, noise, limits, placement):
    """No whole batch of the sequence, shared out by hand, has more goodput."""
    goodput, (nodes, replicas) = Goodput(throughput, noise, limits), placement
    least = min(max(limits.initial, limits.least_local * replicas), limits.largest)
    most = 0.0
    for total in np.geomspace(least, limits.largest, 50):
        share = total / replicas
        gradients = max(math.ceil(share / limits.most_local - 1e-8), 1)
        if replicas == 1 and share > limits.initial:
            gradients = max(gradients, 2)
        local = min(math.ceil(share / gradients - 1e-8), limits.largest // (replicas * gradients))
        if limits.least_local <= local <= limits.most_local:
            most = max(most, float(goodput(nodes, replicas, local, gradients - 1)))
    assert goodput.best(nodes, replicas).goodput == pytest.approx(most, rel=1e-6)


@given(throughputs, noises, limits, placements)
def test_the_best_is_within_the_limits(throughput, noise, limits, placement):
    """Local and whole batches are allowed ones, and have the goodput that is returned with them."""
    goodput = Goodput(throughput, noise, limits)
    best = goodput.best(*placement)
    if best.goodput == 0:
        return
    assert limits.least_local <= best.local <= limits.most_local
    gradients = placement[1] * (best.accumulations + 1)
    assert gradients * best.local <= limits.largest
    assert gradients * best.local >= limits.initial or gradients * (best.local + 1) > limits.largest
    assert best.goodput == pytest.approx(goodput(*placement, best.local, best.accumulations), rel=1e-9)


def test_a_batch_is_shared_out():
    """One replica accumulates above the initial batch, for the noise; shares are rounded within limits."""
    for total, replicas, local, accumulations in (
        ([128, 200, 512], 1, [128, 100, 256], [0, 1, 1]),
        (4096, 7, 292, 1),  # rounded down, so that 4,088 samples are the most
    ):
        shared = LIMITS.share(total, replicas)
        assert (shared[0].tolist(), shared[1].tolist()) == (local, accumulations)
    best = Goodput(THROUGHPUT, Noise(1.0, 1000.0), LIMITS, total=2048).best([1, 2], [3, 7])
    assert (best.local.tolist(), best.accumulations.tolist()) == ([342, 293], [1, 0])
