"""Seeded series of speeds and usage, as workers under contention would report them, and how predictors do."""

from dataclasses import dataclass

import numpy as np

SPIKES = 0.03  # of the iterations: twice as slow, once, and nothing announces it


@dataclass(frozen=True)
class Series:
    """Measurements of a played job, (iterations, workers) each."""

    speeds: np.ndarray  # as measured
    cpu: np.ndarray  # usage at the end of each iteration
    memory: np.ndarray  # likewise
    expected: np.ndarray  # the mean speed of one who knows the contention: the noise floor's prediction


def noisy(clear, rng, noise=0.04, spikes=SPIKES):
    """Add noise and spikes to true speeds; also gives what can be expected of them."""
    slow = np.where(rng.random(clear.shape) < spikes, 0.5, 1.0)
    return clear * slow * (1 + noise * rng.standard_normal(clear.shape)), clear * (1 - spikes / 2)


def contended(seed, iterations=1000, workers=4, cpu_noise=0.03):
    """Others halve a worker's speed for 20 to 60 iterations at a time, from the middle of one on."""
    rng = np.random.default_rng(seed)
    share = np.zeros((iterations, workers))  # of an iteration in which others take half
    after = np.zeros((iterations, workers))  # what others take at its end
    for worker in range(workers):
        at, busy = 0.0, False
        while at < iterations:
            end = at + rng.uniform(20, 60)
            if busy:
                ends = np.arange(iterations) + 1
                share[:, worker] += np.clip(np.minimum(ends, end) - np.maximum(ends - 1, at), 0, 1)
                after[:, worker] += np.where((at < ends) & (ends <= end), 0.5, 0)
            at, busy = end, not busy
    base = rng.uniform(50, 200, workers)
    speeds, expected = noisy(base * (1 - 0.5 * share), rng)
    cpu = np.clip(after + cpu_noise * rng.standard_normal(after.shape), 0, 1)
    return Series(speeds, cpu, 0.3 + 0.01 * rng.standard_normal(after.shape), expected)


def noise_only(seed, iterations=1000, workers=4, spikes=SPIKES):
    """Speeds about a constant; the usage wanders and says nothing."""
    rng = np.random.default_rng(seed)
    speeds, expected = noisy(np.full((iterations, workers), 100.0), rng, spikes=spikes)
    wander = np.cumsum(rng.standard_normal((2, iterations, workers)), axis=1) * 0.03
    cpu, memory = 0.5 + 0.4 * np.sin(wander)
    return Series(speeds, cpu, memory, expected)


def replay(predictor, series, fit=lambda fit: fit.run()):
    """Feed a series to a predictor, running its fits at once.

    Returns:
        (iterations, workers): what was predicted for each iteration; NaN for the first.
    """
    predictor.set_workers([f"w{i}" for i in range(series.speeds.shape[1])])
    predicted = np.full(series.speeds.shape, np.nan)
    for k, row in enumerate(zip(series.speeds, series.cpu, series.memory, strict=True)):
        if k:
            predicted[k] = predictor.predict()
        predictor.observe(*row)
        while (due := predictor.due_fit()) is not None:
            predictor.take_fit(fit(due))
    return predicted


def rmse(predicted, series, start=1):
    """Root mean square error of each worker from an iteration on, (workers,)."""
    return np.sqrt(np.mean((predicted[start:] - series.speeds[start:]) ** 2, axis=0))
