"""Figures of a job's last iterations, computed for all workers at once."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.curves import Curves
from evenpace.overview import phrases
from evenpace.overview.balanced_split import balanced_speedups
from evenpace.overview.best import Best, rates
from evenpace.overview.columns import (
    AT_ONCE,
    COMMUNICATION,
    CPU,
    NAMES,
    PREDICTED,
    SHOWN,
    SIZE,
    TIME,
    WAIT,
    Recent,
    Slots,
)
from evenpace.overview.even_split import with_even_shares
from evenpace.overview.figures import JobFigures, Spread, TimeParts, WorkerFigures, worker_figures
from evenpace.overview.noise_figures import noise_figures
from evenpace.overview.phrases import Estimate, number
from evenpace.overview.statistics import Array, median
from evenpace.overview.stragglers import KINDS, Verdicts, balanced, judge
from evenpace.overview.thinned_rows import DURATION, EPOCH, EVEN, ITERATION, TOTAL, ThinnedRows
from evenpace.overview.transfers import Transfers, bottleneck, transfers, typical
from idl.measures import computing_time, goodput, prediction_error, waiting_share
from idl.noise import statistical_efficiency
from idl.noise_estimate import NoiseEstimate

_LIKELY = 1  # of the three cases of time curves


class RecentFigures:
    """The last `most` iterations of a job; valid until the next change of `recent`.

    Its own arrays are (iterations, workers), NaN where a worker took no part.

    Args:
        recent: The last iterations.
        slots: The columns of their workers.
        cases: The workers' time curves: the flattest, the likely, and the steepest.
        whole: All iterations.
        most: Number of iterations.
    """

    def __init__(
        self,
        recent: Recent,
        slots: Slots,
        cases: Sequence[Curves],
        best: Best,
        whole: ThinnedRows,
        most: int,
    ) -> None:
        values = recent.values[-most:]
        columns = np.flatnonzero(~np.isnan(values[:, SIZE]).all(axis=0))
        names = slots.names
        self._names = [names[column] for column in columns.tolist()]
        self._whole = whole
        self._rows = whole.values[-len(values) :] if len(values) else whole.values[:0]
        self._sizes, self._times, self._waits, self._cpu, self._predicted, self._at_once = (
            values[:, quantity][:, columns] for quantity in (SIZE, TIME, WAIT, CPU, PREDICTED, AT_ONCE)
        )
        self._communication = values[:, COMMUNICATION][:, columns]
        self._transfers = typical(transfers(lambda name: values[:, NAMES.index(name)][:, columns]))
        self._shown = {name: values[:, NAMES.index(name)][:, columns] for name in SHOWN}
        self._cases = [case.at(columns) for case in cases]
        curves = self._cases[_LIKELY]
        busy = (self._sizes > 0) & (self._times > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            self._speeds = np.where(busy, self._sizes / self._times, np.nan)
            self._per_sample = np.where(busy, self._times / self._sizes, np.nan)
        self._even_times = with_even_shares(self._sizes, self._times, curves)
        self._rates = rates(self._sizes, self._times, curves)
        self._best = best.rates(columns, curves)

    def figures(
        self,
        states: Mapping[str, str] | None,
        limit: int | None,
        noise: NoiseEstimate,
        first_size: int | None,
    ) -> JobFigures:
        """Return the job's figures.

        Args:
            states: The members' states, by name; None where they are not known.
            limit: Number of workers listed, the slowest first; None for all.
            noise: The gradient noise over all iterations.
            first_size: Samples of a batch whose efficiency is 1; None where they are not known.
        """
        whole, rows = self._whole, self._rows
        sums = whole.sums
        seconds = float(rows[:, DURATION].sum())
        samples = float(rows[:, TOTAL].sum())
        last = whole.values[-1] if sums.iterations else None
        even = np.where(np.isnan(rows[:, EVEN]), rows[:, DURATION, None], rows[:, EVEN])
        even_seconds = np.array([case.sum() for case in even.T])  # (3,), each as exact as the durations' sum
        known = seconds > 0 and bool((even_seconds > 0).all())
        speedups = _estimate(even_seconds / seconds) if known else None
        saved = _estimate(sums.saved)
        balanced = balanced_speedups(rows[:, DURATION], self._sizes, self._times, self._cases)
        gain = None if balanced is None else _estimate(balanced)
        waits, times = _sums(self._waits), _sums(self._times)
        of_job = typical(Transfers(*(one[:, None] for one in self._transfers)))
        hidden, exposed, is_bound = (float(one[0]) for one in of_job)
        efficiency = self._efficiency(noise.noise.known_scale, first_size)
        verdicts = judge(
            self._per_sample, self._rates, self._best, self._cpu, waiting_share(self._waits, self._times)
        )
        return JobFigures(
            iterations=sums.iterations,
            iteration=int(last[ITERATION]) if last is not None else None,
            epoch=int(last[EPOCH]) if last is not None else None,
            samples=sums.samples,
            seconds=sums.seconds,
            throughput=samples / seconds if known else None,
            even_throughput=samples / speedups.likely / seconds if speedups else None,
            speedup=speedups.likely if speedups else None,
            speedup_least=speedups.least if speedups else None,
            speedup_most=speedups.most if speedups else None,
            iteration_time=float(np.median(rows[:, DURATION])) if len(rows) else None,
            saved_seconds=saved.likely,
            saved_least=saved.least,
            saved_most=saved.most,
            waiting_share=number(float(waiting_share(waits.sum(), times.sum()))),
            prediction_error=number(float(prediction_error(self._predicted, self._speeds))),
            hidden_share=number(hidden),
            exposed_share=number(exposed),
            transfers_text=phrases.transfers(exposed, number(hidden)) if is_bound == 1 else "",
            **noise_figures(noise, int(whole.values[-2:, TOTAL].max(initial=0)), sums.iterations),
            efficiency=number(efficiency),
            goodput=number(float(goodput(samples, seconds, efficiency))),
            balanced_speedup=gain.likely if gain else None,
            balanced_least=gain.least if gain else None,
            balanced_most=gain.most if gain else None,
            headline=phrases.headline(len(self._names), speedups, saved, gain),
            workers=self._workers(verdicts, states, limit),
            verdicts=verdicts.counts(),
        )

    def _efficiency(self, scale: float | None, first_size: int | None) -> float:
        """Return the statistical efficiency of the iterations' samples, on average; NaN where unknown."""
        totals = self._rows[:, TOTAL]
        if scale is None or first_size is None or not totals.any():
            return math.nan
        return float(np.average(statistical_efficiency(scale, totals, first_size), weights=totals))

    def _workers(
        self, verdicts: Verdicts, states: Mapping[str, str] | None, limit: int | None
    ) -> list[WorkerFigures]:
        if not self._names:
            return []
        typical = median(self._per_sample)
        order = np.argsort(-typical, kind="stable")[:limit]  # NaN comes last
        per_sample = self._per_sample[:, order]
        last = self._last_rows()[order]
        member = (
            ~np.isnan(self._sizes[-1])
            if states is None
            else np.array([name in states for name in self._names])
        )
        speeds = median(self._speeds)
        members_speed = median(speeds[member][:, None])[0] if member.any() else np.nan
        sizes, even_sizes = self._sizes[last, order], np.nanmean(self._sizes, axis=1)[last]
        speed_last, predicted_last = self._speeds[last, order], self._predicted[last, order]
        times, waits = median(self._times[:, order]), median(self._waits[:, order])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            shares = waiting_share(_sums(self._waits), _sums(self._times))[order]
            to_best = median(self._rates[:, order]) / self._best[order]
            to_others = speeds[order] / members_speed
        shown = {
            name: median(values[:, order]) if SHOWN[name].over == "median" else values[last, order]
            for name, values in self._shown.items()
        }
        at_once = self._at_once[last, order]
        errors = prediction_error(self._predicted[:, order], self._speeds[:, order], axis=0)
        won = median(self._even_times[:, order] - self._times[:, order])
        low, high = _extremes(per_sample)
        parts = self._time_parts(order)
        hidden, exposed, bound = (one[order] for one in self._transfers)
        listed = []
        for i, worker in enumerate(order.tolist()):
            name = self._names[worker]
            if states is not None:
                state = states.get(name, "gone")
            else:
                state = "working" if member[worker] else "gone"
            gain = number(won[i])
            listed.append(
                worker_figures(
                    worker=name,
                    state=state,
                    batch_size=int(sizes[i]),
                    even_batch_size=float(even_sizes[i]),
                    at_once=int(at_once[i]),
                    batch_processing_time=number(times[i]),
                    waiting_time=number(waits[i]),
                    waiting_share=number(shares[i]),
                    time_parts=parts[i],
                    hidden_share=number(hidden[i]),
                    exposed_share=number(exposed[i]),
                    bottleneck=bottleneck(bound[i]),
                    seconds_per_sample=Spread(number(low[i]), number(typical[worker]), number(high[i])),
                    speed=number(speeds[worker]),
                    relative_to_best=number(to_best[i]),
                    relative_to_others=number(to_others[i]),
                    predicted_speed=number(predicted_last[i]),
                    real_speed=number(speed_last[i]),
                    prediction_error=number(errors[i]),
                    verdict=KINDS[verdicts.kinds[worker]],
                    verdict_text=verdicts.text(worker),
                    balanced_text=balanced(float(sizes[i]), float(even_sizes[i]), gain),
                    won_per_iteration=gain,
                    **{name: number(values[i]) for name, values in shown.items()},
                )
            )
        return listed

    def _time_parts(self, order: NDArray[np.intp]) -> list[TimeParts]:
        """Return what the time of the workers in `order` is spent on, on average."""
        computing = computing_time(self._times, self._communication)[:, order]
        communicating = self._communication[:, order]
        measured = np.asarray(~np.isnan(communicating).all(axis=0))
        numbers = (~np.isnan(self._times[:, order])).sum(axis=0)
        means = [_sums(one) / numbers for one in (computing, communicating, self._waits[:, order])]
        return [
            TimeParts(float(compute), float(communicate) if known else None, float(wait))
            for compute, communicate, wait, known in zip(*means, measured, strict=True)
        ]

    def _last_rows(self) -> Array:
        """Return the last row in which each worker took part, (workers,)."""
        there = ~np.isnan(self._sizes[::-1])
        rows: Array = len(self._sizes) - 1 - there.argmax(axis=0)
        return rows


def _estimate(values: Array) -> Estimate:
    """Return the estimate from three values: by the flattest, the likely, and the steepest time curves."""
    return Estimate(float(values.min()), float(values[_LIKELY]), float(values.max()))


def _sums(values: Array) -> Array:
    """Return the sum of each column, leaving out NaN."""
    return np.asarray(np.nansum(values, axis=0))


def _extremes(values: Array) -> tuple[Array, Array]:
    """Return minimum and maximum of each column, leaving out NaN; NaN for a column of NaN alone."""
    low, high = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    low, high = low.min(axis=0), high.max(axis=0)
    return np.where(np.isinf(low), np.nan, low), np.where(np.isinf(high), np.nan, high)
