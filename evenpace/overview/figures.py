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
    """

    computing: float  # loading and computing; communication, too, where that is not known
    communicating: float | None  # transfers of gradients and parameters; None where they are not known
    waiting: float  # waiting for the others


@dataclass(frozen=True, kw_only=True)
class WorkerFigures:
    """Figures of one worker over the last iterations, at most 100 of them; made by `worker_figures`.

    It also has each of the measured values that tables show (`SHOWN`), by name: the median, or the last.

    Attributes:
        verdict: "chronic" (a straggler, slower than others nearly all the time), "passing" (slower than it
            can be, for now), "leader" (the fastest), or "even".
    """

    worker: str  # name of the worker
    state: str  # its state as in `MemberStatus`; "gone" if it is no member any more
    batch_size: int  # samples in the last iteration
    even_batch_size: float  # samples that an even split would assign to it
    at_once: int  # micro-batches that it computed at once in the last iteration; 1 in a job without
    batch_processing_time: float | None  # median, in seconds
    waiting_time: float | None  # median, in seconds
    waiting_share: float | None  # share of its time spent waiting, as `idl.measures` defines it
    time_parts: TimeParts  # what its time in an iteration is spent on
    # Share of the transfers' time that is hidden behind computing, as `transfers` defines it; the median.
    hidden_share: float | None
    exposed_share: float | None  # share of an iteration that the other transfers take, likewise
    # "communication" or "computing", in most iterations, likewise; None where it is not known.
    bottleneck: str | None
    seconds_per_sample: Spread  # time that a sample takes
    speed: float | None  # median, in samples per second
    # Its speed relative to its own best, the 95th percentile over the whole job.
    relative_to_best: float | None
    relative_to_others: float | None  # its speed relative to the median of the members' speeds
    predicted_speed: float | None  # speed predicted for the last iteration
    real_speed: float | None  # speed measured in the last iteration
    prediction_error: float | None  # error of the predictions of its speed, as `idl.measures` defines it
    verdict: str
    verdict_text: str  # reason for the verdict, in words
    balanced_text: str  # what the balancer did about it, in words: "takes 44 instead of 180 samples"
    won_per_iteration: float | None  # seconds that it would take longer with an even share; negative: shorter


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
    """One worker's iterations: a value for each point of the timeline, None where it took no part."""

    batch_sizes: list[float | None]  # in samples
    batch_processing_times: list[float | None]  # in seconds
    # Part of the batch processing time that is no communication, as `idl.measures` has it.
    computing_times: list[float | None]
    communication_times: list[float | None]  # the other part; None where it is not known
    waiting_times: list[float | None]  # in seconds
    speeds: list[float | None]  # in samples per second
    predicted_speeds: list[float | None]  # likewise


@dataclass(frozen=True, slots=True)
class Timeline:
    """A job's iterations for a plot. All lists have a value for each point: that of the point's iteration."""

    iterations: list[int]  # the iteration that each point is, ascending; of a long run, some are left out
    durations: list[float]  # durations of the iterations, in seconds
    even_durations: list[float | None]  # durations with an even split, estimated, in seconds
    batch_sizes: list[Spread]  # spread over workers, in samples
    batch_processing_times: list[Spread]  # spread over workers, in seconds
    waiting_times: list[Spread]  # spread over workers, in seconds
    throughputs: list[float]  # samples per second
    totals: list[int]  # samples of the whole batch
    noise_scales: list[float | None]  # noise scale in samples, as it was known at that iteration
    # Statistical efficiency by that noise scale, as `idl.measures` defines it.
    efficiencies: list[float | None]
    # Goodput by that efficiency, in samples per second, as `idl.measures` defines it.
    goodputs: list[float | None]
    # The requested workers' timelines, by name.
    workers: dict[str, WorkerTimeline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFigures:
    """Figures of a job over its last iterations, at most 100 of them, and over all.

    Attributes:
        speedup_least: The lowest of the estimates with the likely time curves and with two others, whose
            slopes the true ones are below with a probability of 0.05 and of 0.95.
        transfers_text: How much of an iteration transfers take, in words, where communication is the
            bottleneck of most workers; else empty.
        noise_scale: The gradient noise's scale in samples, as `idl.noise.Noise` defines it, from all
            iterations whose gradients' norms are known; the older ones count less.
        noise_sqr: Squared norm of the true gradient; an estimate, which may be negative. With Adam, of the
            preconditioned gradient, in other units.
        work_of_twice: Work of an iteration with twice the batch relative to the present, as `idl.measures`
            defines it: from 1 to 2. The present batch is the larger one of the last two iterations, since
            an epoch's last batch may be small.
        efficiency: Statistical efficiency of the last iterations' samples, the mean by the noise scale that
            is known now, relative to batches of the script's size; None where the scale is not known.
        balanced_speedup: Speed that balancing would bring relative to the present one, where the last
            iterations were split evenly; None elsewhere.
        headline: "1.9x faster than even; 41 min saved", "about 3.1x faster than even, at least 1.3x; 4 min
            saved, at least 29 s" where it is not known well, "split evenly; balanced would be 2.1x as fast",
            or the reason why nothing can be said yet.
    """

    iterations: int  # number of complete iterations seen
    iteration: int | None  # the last of them; None without any
    epoch: int | None  # epoch of the last iteration
    samples: int  # samples trained on in all iterations
    seconds: float  # duration of all iterations
    throughput: float | None  # samples per second over the last iterations
    even_throughput: float | None  # samples per second with an even split, estimated over the last iterations
    speedup: float | None  # throughput over that of an even split; above 1 where balancing helps
    speedup_least: float | None
    speedup_most: float | None  # the highest estimate, where `speedup_least` is the lowest
    iteration_time: float | None  # median duration of the last iterations, in seconds
    saved_seconds: float  # time saved against an even split over all iterations, estimated; negative: lost
    saved_least: float  # the lowest estimate, with the time curves of `speedup_least`
    saved_most: float  # the highest estimate, likewise
    # Share of the workers' time spent waiting in the last iterations, as `idl.measures` defines it.
    waiting_share: float | None
    # Error of the predictions of all workers' speeds in the last iterations, as `idl.measures` defines it.
    prediction_error: float | None
    hidden_share: float | None  # median of the workers' `hidden_share`; None where it is not known of any
    exposed_share: float | None  # median of the workers' `exposed_share`, likewise
    transfers_text: str
    noise_scale: float | None
    noise_scale_least: float | None  # the least that two standard errors allow
    noise_scale_most: float | None  # the greatest; None where there is no bound
    noise_known: bool  # whether the scale is known to about a factor of two each way
    noise_sqr: float | None
    noise_var: float | None  # trace of one sample's gradient's covariance; an estimate, as `noise_sqr` is
    noise_iterations: int  # number of iterations that these are from
    work_of_twice: float | None
    work_of_twice_least: float | None  # the least that two standard errors of the noise allow
    work_of_twice_most: float | None  # the greatest, likewise
    noise_text: str  # what the noise says about the size of the batch, in words, or why it is not known
    efficiency: float | None
    goodput: float | None  # samples per second over the last iterations times `efficiency`
    balanced_speedup: float | None
    # The lowest estimate, with the time curves of `speedup_least` or `speedup_most`.
    balanced_least: float | None
    balanced_most: float | None  # the highest estimate, likewise
    headline: str
    workers: list[WorkerFigures]  # workers of the last iterations, the slowest per sample first
    verdicts: dict[str, int]  # number of workers by `WorkerFigures.verdict`

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
