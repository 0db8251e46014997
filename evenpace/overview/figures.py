"""What is made of a job's records: values for pages, terminals, metrics and reports, ready for JSON.

Times are in seconds, speeds in samples per second; None stands for what is not known, as JSON has no NaN.
What an *even* split would have brought is estimated; `even_split` says how.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Spread:
    """How a quantity was spread, over workers or over iterations."""

    minimum: float | None
    median: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """One worker over the last iterations, at most 100 of them.

    Attributes:
        worker: Its name.
        state: As in `MemberStatus`; "gone" for one that is no member any more.
        batch_size: Samples, in the last iteration.
        even_batch_size: That an even split would give it.
        batch_processing_time: Median.
        waiting_time: Median.
        waiting_share: See `idl.measures`.
        seconds_per_sample: The time that a sample takes.
        speed: Median.
        relative_to_best: Its speed relative to its own best, the 95th percentile of all that was seen.
        relative_to_others: Its speed relative to the median of the members' speeds.
        cpu_usage: Median share of its CPUs that others take, 0 to 1.
        memory_usage: Last share of its memory in use, 0 to 1.
        predicted_speed: Before the last iteration.
        real_speed: In the last iteration.
        prediction_error: Of its speeds; see `idl.measures`.
        verdict: "chronic" (a straggler, slower than others nearly all the time), "passing" (slower than it
            can be, for now), "leader" (the fastest), or "even".
        verdict_text: Why, in words.
        balanced_text: What the balancer did about it, in words: "takes 44 instead of 180 samples".
        won_per_iteration: Seconds that it would take longer with an even share; negative: shorter.
    """

    worker: str
    state: str
    batch_size: int
    even_batch_size: float
    batch_processing_time: float | None
    waiting_time: float | None
    waiting_share: float | None
    seconds_per_sample: Spread
    speed: float | None
    relative_to_best: float | None
    relative_to_others: float | None
    cpu_usage: float | None
    memory_usage: float | None
    predicted_speed: float | None
    real_speed: float | None
    prediction_error: float | None
    verdict: str
    verdict_text: str
    balanced_text: str
    won_per_iteration: float | None


@dataclass(frozen=True, slots=True)
class WorkerTimeline:
    """One worker's course, a value for each point of the timeline; None where it took no part."""

    batch_sizes: list[float | None]
    batch_processing_times: list[float | None]
    waiting_times: list[float | None]
    speeds: list[float | None]
    predicted_speeds: list[float | None]


@dataclass(frozen=True, slots=True)
class Timeline:
    """A job's course. All lists have a value for each point, and all quantities are as of that iteration.

    Attributes:
        iterations: The iteration that each point is, ascending; of a long run, some are left out.
        durations: Of the iterations.
        even_durations: That an even split would have brought.
        batch_sizes: Over workers.
        batch_processing_times: Likewise.
        waiting_times: Likewise.
        throughputs: Samples per second.
        workers: By name, for those asked for.
    """

    iterations: list[int]
    durations: list[float]
    even_durations: list[float | None]
    batch_sizes: list[Spread]
    batch_processing_times: list[Spread]
    waiting_times: list[Spread]
    throughputs: list[float]
    workers: dict[str, WorkerTimeline] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job over the last iterations, at most 100 of them, and in all.

    Attributes:
        iterations: Complete ones that were seen, in all.
        iteration: The last of them; None without any.
        epoch: Of it.
        samples: Trained in all of them.
        seconds: That all of them took.
        throughput: Samples per second, of late.
        even_throughput: That an even split would have brought.
        speedup: Of the two; above 1 where balancing helps.
        speedup_least: It is below that with a probability of about a twentieth.
        speedup_most: Above, likewise.
        iteration_time: Median duration of late.
        saved_seconds: Over all iterations, against an even split.
        saved_least: As of the speedup.
        saved_most: Likewise.
        waiting_share: Of late; see `idl.measures`.
        prediction_error: Of all workers' speeds of late; see `idl.measures`.
        headline: "1.9x faster than even; 41 min saved so far", "at least" so much where that is all that
            is known, or why there is nothing to say yet.
        workers: The slowest per sample first; those that were in the last iterations.
        verdicts: How many workers are what; see `WorkerFigures.verdict`.
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
    headline: str
    workers: list[WorkerFigures]
    verdicts: dict[str, int]
