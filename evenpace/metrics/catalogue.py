"""The catalogue of metrics: name, kind, labels, unit and meaning, and the parts that have each.

The collectors take their families from here, so that nothing is exposed that is not listed;
`evenpace metrics` prints it as a table. It knows no part of a cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from rpc.counters import Histogram

SERVICES = ("manager", "ps", "partitions")
PARTS = (*SERVICES, "worker")
SPREAD = ("min", "median", "max")  # over the workers of a job


@dataclass(frozen=True)
class Described:
    """A metric's description.

    Attributes:
        name: Its name without the exposition's endings (`_total`, `_bucket`, `_sum`, `_count`).
        kind: Its type in Prometheus.
        labels: Names of its labels.
        unit: Unit of its values.
        parts: The parts of a cluster that have it.
        meaning: Its meaning; with the unit in front, mostly one phrase: "connections", "that are open".
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    unit: str
    parts: tuple[str, ...]
    meaning: str

    @property
    def shown(self) -> str:
        """The name in queries, without the endings of histograms."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _described() -> Iterator[Described]:
    def gauge(parts: tuple[str, ...], name: str, labels: str, unit: str, meaning: str) -> Described:
        return Described(f"evenpace_{name}", "gauge", tuple(labels.split()), unit, parts, meaning)

    def counter(parts: tuple[str, ...], name: str, labels: str, unit: str, meaning: str) -> Described:
        return Described(f"evenpace_{name}", "counter", tuple(labels.split()), unit, parts, meaning)

    def histogram(parts: tuple[str, ...], name: str, labels: str, unit: str, meaning: str) -> Described:
        return Described(f"evenpace_{name}", "histogram", tuple(labels.split()), unit, parts, meaning)

    yield gauge(PARTS, "build_info", "part version", "", "1; what runs here")

    of: tuple[str, ...] = SERVICES
    yield gauge(of, "connections", "", "connections", "that are open")
    yield counter(of, "connections_accepted", "", "connections", "that came in")
    yield counter(of, "connections_refused", "", "connections", "that were closed, and told why")
    yield counter(of, "connections_cut_off", "", "connections", "that were closed without a word")
    yield counter(of, "received_bytes", "", "bytes", "of messages, without what TLS adds")
    yield counter(of, "sent_bytes", "", "bytes", "of answers, without what TLS adds")
    yield counter(
        of,
        *("calls", "method outcome", "calls"),
        "that were answered; the outcome is ok, the exception's name, or failed",
    )
    yield histogram(
        of, "call_seconds", "method", "seconds", "from a call to its answer, the wait for others included"
    )
    yield gauge(of, "loop_late_seconds", "", "seconds", "by which the event loop was late just now")

    of = ("manager",)
    yield gauge(of, "jobs", "state", "jobs", "in each state that have not ended")
    yield counter(of, "jobs_ended", "outcome", "jobs", "that came to their end, or failed")
    yield gauge(of, "job_info", "job run policy predictor mode", "", "1; how a job is run")
    yield gauge(of, "job_state", "job state", "", "1 for the state that a job is in")
    yield gauge(of, "job_members", "job", "workers", "that are in a job")
    yield gauge(of, "job_expected_members", "job", "workers", "that a job starts with")
    yield gauge(of, "job_waiting_members", "job", "workers", "that wait for an answer of the manager")
    yield gauge(of, "job_iteration", "job", "iterations", "the first that is not complete")
    yield gauge(of, "job_epoch", "job", "epochs", "of the last complete iteration")
    yield gauge(of, "job_batch_samples", "job", "samples", "of the last complete iteration's batch")
    yield histogram(
        of, "job_iteration_seconds", "job", "seconds", "that iterations took; the count is that of rounds"
    )
    yield gauge(of, "job_last_iteration_seconds", "job", "seconds", "that the last complete iteration took")
    yield gauge(of, "job_idle_seconds", "job", "seconds", "since an iteration was complete, or the job came")
    yield counter(of, "job_samples", "job", "samples", "of complete iterations")
    yield counter(of, "job_processing_seconds", "job", "seconds", "batch processing times, over all workers")
    yield counter(
        of, "job_waiting_seconds", "job", "seconds", "that workers waited for each other, over all workers"
    )
    yield gauge(
        of,
        *("job_waiting_ratio", "job", "ratio"),
        "of the workers' time in the last complete iteration that they waited",
    )
    yield gauge(
        of,
        *("job_prediction_error_ratio", "job", "ratio"),
        "of how far predictions were off to the speeds that were shown: root mean square over the workers",
    )
    yield counter(of, "job_rewinds", "job", "attempts", "that were begun after the first")
    yield counter(of, "job_pieces", "job", "parts", "of iterations that were redone by another worker")
    yield counter(of, "job_members_left", "job", "workers", "that said goodbye")
    yield counter(of, "job_members_removed", "job", "workers", "that were taken out")
    yield counter(of, "job_members_suspended", "job", "times", "a worker was silent and others did its part")
    workers = (
        ("batch_samples", "samples", "of the worker's part of the last complete batch"),
        ("batch_processing_seconds", "seconds", "that the worker took for its part"),
        ("waiting_seconds", "seconds", "that the worker waited for the others"),
        ("samples_per_second", "samples per second", "the speed that the worker has shown"),
        ("predicted_samples_per_second", "samples per second", "the speed that was predicted"),
        ("cpu_ratio", "ratio", "of the worker's CPUs that others take"),
        ("memory_ratio", "ratio", "of the worker's memory that is in use"),
    )
    for name, unit, meaning in workers:
        yield gauge(of, f"worker_{name}", "job worker", unit, f"{meaning}; for jobs of few workers")
    for name, unit, meaning in workers:
        yield gauge(of, f"workers_{name}", "job of", unit, f"min, median and max over the workers: {meaning}")
    yield histogram(of, "policy_seconds", "step", "seconds", "that a policy took to split, or to observe")
    yield histogram(of, "fit_seconds", "", "seconds", "that fits of predictors took")
    yield counter(of, "fits_failed", "", "fits", "of predictors that came to nothing")
    yield gauge(of, "state_pending_records", "", "records", "that wait to be written, with --state")
    yield gauge(of, "state_lag_seconds", "", "seconds", "for which the oldest of them has waited")
    yield gauge(of, "state_behind", "", "", "1 while the state's file cannot be written")
    yield counter(of, "state_left_out", "", "iterations", "whose records were too many to be held")
    yield histogram(of, "state_write_seconds", "", "seconds", "that writes took")

    of = ("ps",)
    run = "job run"
    yield gauge(of, "shard_jobs", "", "jobs", "that the shard holds")
    yield gauge(of, "shard_version", run, "steps", "of the optimiser that the parameters have")
    yield gauge(of, "shard_attempt", run, "attempts", "the one that the shard is in")
    yield gauge(of, "shard_parameter_bytes", run, "bytes", "of the parameters")
    yield gauge(of, "shard_connections", run, "connections", "of workers of the job")
    yield gauge(of, "shard_waiting_pulls", run, "calls", "that wait for a step")
    yield counter(of, "shard_pushes", run, "gradients", "that came")
    yield counter(of, "shard_duplicates", run, "gradients", "that were dropped, since they were there")
    yield counter(of, "shard_pushed_bytes", run, "bytes", "of gradients")
    yield counter(of, "shard_pulls", run, "answers", "with parameters or an optimiser's state")
    yield counter(of, "shard_pulled_bytes", run, "bytes", "of these answers")
    yield counter(of, "shard_aggregation_seconds", run, "seconds", "spent on sums of gradients")
    yield histogram(of, "shard_step_seconds", run, "seconds", "that steps of the optimiser took")
    yield counter(of, "shard_checkpoints", run, "checkpoints", "that were written, with --state")
    yield counter(of, "shard_checkpoints_failed", run, "checkpoints", "that could not be written")
    yield counter(of, "shard_checkpoint_seconds", run, "seconds", "that it took to write them")
    yield counter(of, "shard_checkpoint_bytes", run, "bytes", "that were written")
    yield gauge(of, "shard_checkpoint_age_seconds", run, "seconds", "since the last was written")

    of = ("partitions",)
    yield gauge(of, "partition_jobs", "", "jobs", "that are kept in balance")
    yield gauge(of, "partition_members", "job", "workers", "that hold a part")
    yield gauge(of, "partition_samples", "job", "samples", "of all parts")
    yield gauge(of, "partition_generation", "job", "resets", "of the counts since the job began")
    yield gauge(of, "partition_moves", "job", "moves", "of samples that are under way")
    yield gauge(of, "partition_gap_traversals", "job", "traversals", "that the fastest part is ahead")

    of = ("worker",)
    yield gauge(of, "session_info", "job worker run", "", "1; whose figures these are")
    yield gauge(of, "session_iteration", "", "iterations", "the one that the worker is in")
    yield gauge(of, "session_batch_samples", "", "samples", "of its present part")
    yield gauge(of, "session_batch_limit_samples", "", "samples", "that it takes at most, given or learned")
    yield counter(of, "session_iterations", "", "iterations", "that were finished")
    yield counter(of, "session_samples", "", "samples", "that were processed")
    yield counter(of, "session_pieces", "", "parts", "of iterations that were another worker's")
    yield counter(of, "session_rewinds", "", "recoveries", "that the worker went through")
    yield counter(of, "session_reconnects", "", "connections", "that were lost and made again")
    yield histogram(of, "session_batch_processing_seconds", "", "seconds", "as they were reported")
    yield counter(
        of, "session_phase_seconds", "phase", "seconds", "spent on pull, load, compute, push and report"
    )
    yield counter(of, "session_shard_waiting_seconds", "", "seconds", "for which shards held parameters back")


METRICS = {metric.name: metric for metric in _described()}


class Families:
    """The metric families of one scrape of one part, those without samples included.

    Args:
        part: One of `PARTS`.
    """

    def __init__(self, part: str) -> None:
        self._families: dict[str, Metric] = {}
        for metric in METRICS.values():
            if part in metric.parts:
                self._families[metric.name] = _FAMILIES[metric.kind](
                    metric.name, metric.meaning, labels=metric.labels
                )

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge's or a counter's value, for the values of its labels."""
        self._families[f"evenpace_{name}"].add_metric(labels, value)  # type: ignore[attr-defined]

    def fill(self, name: str, tally: Histogram, *labels: str) -> None:
        """Set a histogram's values."""
        counts, buckets, below = list(tally.counts), [], 0
        for bound, count in zip((*map(str, tally.bounds), "+Inf"), counts, strict=True):
            below += count
            buckets.append((bound, float(below)))
        family = self._families[f"evenpace_{name}"]
        family.add_metric(labels, buckets, tally.total)  # type: ignore[attr-defined]


_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
