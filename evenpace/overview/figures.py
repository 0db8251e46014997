"""Values computed from a job's records, for pages, terminals, metrics and reports; ready for JSON.

Times are in seconds, speeds in samples per second; None is a value that is not known, as JSON has no NaN.
Figures of an *even* split are estimates; `even_split` says how they are made.
"""

from dataclasses import dataclass, field, make_dataclass
from typing import Any

from evenpace.overview import phrases
from evenpace.overview.columns import SHOWN


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread of a quantity over workers or over iterations."""

    minimum: float | None
    median: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True)
class TimeParts:
    """Parts of a worker's time in an iteration: the mean over its iterations, in seconds.

    Together they are its batch processing time and its waiting time.

    Attributes:
        computing: Loading and computing; communication, too, where that is not known.
        communicating: Transfers of gradients and parameters; None where they are not known.
        waiting: Waiting for the others.
    """

    computing: float
    communicating: float | None
    waiting: float


@dataclass(frozen=True, kw_only=True)
class WorkerFigures:
    """Figures of one worker over the last iterations, at most 100 of them; made by `worker_figures`.

    It also has each of the measured values that tables show (`SHOWN`), by name: the median, or the last.

    Attributes:
        worker: Name of the worker.
        state: Its state as in `MemberStatus`; "gone" if it is no member any more.
        batch_size: Samples in the last iteration.
        even_batch_size: Samples that an even split would assign to it.
        at_once: Micro-batches that it computed at once in the last iteration; 1 in a job without.
        batch_processing_time: Median, in seconds.
        waiting_time: Median, in seconds.
        waiting_share: Share of its time spent waiting, as `idl.measures` defines it.
        time_parts: What its time in an iteration is spent on.
        hidden_share: Share of the transfers' time that is hidden behind computing, as `transfers` defines it;
            the median.
        exposed_share: Share of an iteration that the other transfers take, likewise.
        bottleneck: "communication" or "computing", in most iterations, likewise; None where it is not known.
        seconds_per_sample: Time that a sample takes.
        speed: Median, in samples per second.
        relative_to_best: Its speed relative to its own best, the 95th percentile over the whole job.
        relative_to_others: Its speed relative to the median of the members' speeds.
        predicted_speed: Speed predicted for the last iteration.
        real_speed: Speed measured in the last iteration.
        prediction_error: Error of the predictions of its speed, as `idl.measures` defines it.
        verdict: "chronic" (a straggler, slower than others nearly all the time), "passing" (slower than it
            can be, for now), "leader" (the fastest), or "even".
        verdict_text: Reason for the verdict, in words.
        balanced_text: What the balancer did about it, in words: "takes 44 instead of 180 samples".
        won_per_iteration: Seconds that it would take longer with an even share; negative: shorter.
    """

    worker: str
    state: str
    batch_size: int
    even_batch_size: float
    at_once: int
    batch_processing_time: float | None
    waiting_time: float | None
    waiting_share: float | None
    time_parts: TimeParts
    hidden_share: float | None
    exposed_share: float | None
    bottleneck: str | None
    seconds_per_sample: Spread
    speed: float | None
    relative_to_best: float | None
    relative_to_others: float | None
    predicted_speed: float | None
    real_speed: float | None
    prediction_error: float | None
    verdict: str
    verdict_text: str
    balanced_text: str
    won_per_iteration: float | None


_WithMeasured = make_dataclass(
    "WorkerFigures",
    [(name, float | None) for name in SHOWN],
    bases=(WorkerFigures,),
    frozen=True,
    kw_only=True,
)


def worker_figures(**values: Any) -> WorkerFigures:
    """Make the figures of a worker: the attributes of `WorkerFigures`, and each name in `SHOWN`."""
    return _WithMeasured(**values)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class WorkerTimeline:
    """One worker's iterations: a value for each point of the timeline, None where it took no part.

    Attributes:
        batch_sizes: In samples.
        batch_processing_times: In seconds.
        computing_times: Part of the batch processing time that is no communication, as `idl.measures` has it.
        communication_times: The other part; None where it is not known.
        waiting_times: In seconds.
        speeds: In samples per second.
        predicted_speeds: Likewise.
    """

    batch_sizes: list[float | None]
    batch_processing_times: list[float | None]
    computing_times: list[float | None]
    communication_times: list[float | None]
    waiting_times: list[float | None]
    speeds: list[float | None]
    predicted_speeds: list[float | None]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A job's iterations for a plot. All lists have a value for each point: that of the point's iteration.

    Attributes:
        iterations: The iteration that each point is, ascending; of a long run, some are left out.
        durations: Durations of the iterations, in seconds.
        even_durations: Durations with an even split, estimated, in seconds.
        batch_sizes: Spread over workers, in samples.
        batch_processing_times: Spread over workers, in seconds.
        waiting_times: Spread over workers, in seconds.
        throughputs: Samples per second.
        totals: Samples of the whole batch.
        noise_scales: Noise scale in samples, as it was known at that iteration.
        efficiencies: Statistical efficiency by that noise scale, as `idl.measures` defines it.
        goodputs: Goodput by that efficiency, in samples per second, as `idl.measures` defines it.
        workers: The requested workers' timelines, by name.
    """

    iterations: list[int]
    durations: list[float]
    even_durations: list[float | None]
    batch_sizes: list[Spread]
    batch_processing_times: list[Spread]
    waiting_times: list[Spread]
    throughputs: list[float]
    totals: list[int]
    noise_scales: list[float | None]
    efficiencies: list[float | None]
    goodputs: list[float | None]
    workers: dict[str, WorkerTimeline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Figures of a job over its last iterations, at most 100 of them, and over all.

    Attributes:
        iterations: Number of complete iterations seen.
        iteration: The last of them; None without any.
        epoch: Epoch of the last iteration.
        samples: Samples trained on in all iterations.
        seconds: Duration of all iterations.
        throughput: Samples per second over the last iterations.
        even_throughput: Samples per second with an even split, estimated over the last iterations.
        speedup: Throughput over that of an even split; above 1 where balancing helps.
        speedup_least: The lowest of the estimates with the likely time curves and with two others, whose
            slopes the true ones are below with a probability of 0.05 and of 0.95.
        speedup_most: The highest of these estimates.
        iteration_time: Median duration of the last iterations, in seconds.
        saved_seconds: Time saved against an even split over all iterations, estimated; negative: lost.
        saved_least: The lowest estimate, with the time curves of `speedup_least`.
        saved_most: The highest estimate, likewise.
        waiting_share: Share of the workers' time spent waiting in the last iterations, as `idl.measures`
            defines it.
        prediction_error: Error of the predictions of all workers' speeds in the last iterations, as
            `idl.measures` defines it.
        hidden_share: Median of the workers' `hidden_share`; None where it is not known of any.
        exposed_share: Median of the workers' `exposed_share`, likewise.
        transfers_text: How much of an iteration transfers take, in words, where communication is the
            bottleneck of most workers; else empty.
        noise_scale: The gradient noise's scale in samples, as `idl.noise.Noise` defines it, from all
            iterations whose gradients' norms are known; the older ones count less.
        noise_scale_least: The least that two standard errors allow.
        noise_scale_most: The greatest; None where there is no bound.
        noise_known: Whether the scale is known to about a factor of two each way.
        noise_sqr: Squared norm of the true gradient; an estimate, which may be negative. With Adam, of the
            preconditioned gradient, in other units.
        noise_var: Trace of the covariance of one sample's gradient, likewise.
        noise_iterations: Number of iterations that these are from.
        work_of_twice: Work of an iteration with twice the batch relative to the present, as `idl.measures`
            defines it: from 1 to 2. The present batch is the larger one of the last two iterations, since
            an epoch's last batch may be small.
        work_of_twice_least: The least that two standard errors of the noise allow.
        work_of_twice_most: The greatest, likewise.
        noise_text: What the noise says about the size of the batch, in words, or why it is not known.
        efficiency: Statistical efficiency of the last iterations' samples, the mean by the noise scale that
            is known now, relative to batches of the script's size; None where the scale is not known.
        goodput: Samples per second over the last iterations times `efficiency`, likewise.
        balanced_speedup: Speed that balancing would bring relative to the present one, where the last
            iterations were split evenly; None elsewhere.
        balanced_least: The lowest estimate, with the time curves of `speedup_least` or `speedup_most`.
        balanced_most: The highest estimate, likewise.
        headline: "1.9x faster than even; 41 min saved", "about 3.1x faster than even, at least 1.3x; 4 min
            saved, at least 29 s" where it is not known well, "split evenly; balanced would be 2.1x as fast",
            or the reason why nothing can be said yet.
        workers: Workers of the last iterations, the slowest per sample first.
        verdicts: Number of workers by `WorkerFigures.verdict`.
    """

    iterations: int
    iteration: int | None
    epoch: int | None
    samples: int
    seconds: float
    throughput: float | None
    even_throughput: float | None
    speedup: float | None
    speedup_least: float | None
    speedup_most: float | None
    iteration_time: float | None
    saved_seconds: float
    saved_least: float
    saved_most: float
    waiting_share: float | None
    prediction_error: float | None
    hidden_share: float | None
    exposed_share: float | None
    transfers_text: str
    noise_scale: float | None
    noise_scale_least: float | None
    noise_scale_most: float | None
    noise_known: bool
    noise_sqr: float | None
    noise_var: float | None
    noise_iterations: int
    work_of_twice: float | None
    work_of_twice_least: float | None
    work_of_twice_most: float | None
    noise_text: str
    efficiency: float | None
    goodput: float | None
    balanced_speedup: float | None
    balanced_least: float | None
    balanced_most: float | None
    headline: str
    workers: list[WorkerFigures]
    verdicts: dict[str, int]

    @property
    def speedup_doubt(self) -> str:
        """Return how far the speed-up may be off, as the headline has it; empty where it is known well."""
        if self.speedup is None or self.speedup_least is None or self.speedup_most is None:
            return ""
        return phrases.speedup_doubt(phrases.Estimate(self.speedup_least, self.speedup, self.speedup_most))

    @property
    def saved_doubt(self) -> str:
        """Return how far the time saved may be off, as the headline has it; empty where it is known well."""
        return phrases.saved_doubt(phrases.Estimate(self.saved_least, self.saved_seconds, self.saved_most))
