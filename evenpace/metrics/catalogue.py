"""The catalogue of metrics: name, kind, labels, unit and meaning, and the parts that have each.

The collectors take their families from here, so that nothing is exposed that is not listed;
`evenpace metrics` prints it as a table. It knows no part of a cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from idl.records import COLUMNS
from rpc.counters import Histogram

SERVICES = ("manager", "ps", "partitions")
PARTS = (*SERVICES, "worker")
SPREAD = ("min", "median", "max")  # over the workers of a job


@dataclass(frozen=True)
class DescribedMetric:
    """A metric's description."""

    name: str  # its name without the exposition's endings (`_total`, `_bucket`, `_sum`, `_count`)
    kind: Literal["gauge", "counter", "histogram"]  # its type in Prometheus
    labels: tuple[str, ...]  # names of its labels
    unit: str  # unit of its values
    parts: tuple[str, ...]  # the parts of a cluster that have it
    meaning: str  # its meaning, which is also its help text

    @property
    def shown(self) -> str:
        """The name in queries, without the endings of histograms."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _described() -> Iterator[DescribedMetric]:
    def gauge(parts: tuple[str, ...], name: str, labels: str, unit: str, meaning: str) -> DescribedMetric:
        return DescribedMetric(f"evenpace_{name}", "gauge", tuple(labels.split()), unit, parts, meaning)

    def counter(parts: tuple[str, ...], name: str, labels: str, unit: str, meaning: str) -> DescribedMetric:
        return DescribedMetric(f"evenpace_{name}", "counter", tuple(labels.split()), unit, parts, meaning)

    def histogram(parts: tuple[str, ...], name: str, labels: str, unit: str, meaning: str) -> DescribedMetric:
        return DescribedMetric(f"evenpace_{name}", "histogram", tuple(labels.split()), unit, parts, meaning)

    yield gauge(PARTS, "build_info", "part version", "", "1; part and version of this process")

    of: tuple[str, ...] = SERVICES
    yield gauge(of, "connections", "", "connections", "open connections")
    yield counter(of, "connections_accepted", "", "connections", "accepted connections")
    yield counter(of, "connections_refused", "", "connections", "connections that were closed with an error")
    yield counter(
        of, "connections_cut_off", "", "connections", "connections that were closed without an error"
    )
    yield counter(of, "received_bytes", "", "bytes", "bytes of received messages, before TLS")
    yield counter(of, "sent_bytes", "", "bytes", "bytes of sent answers, before TLS")
    yield counter(
        of,
        *("calls", "method outcome", "calls"),
        "answered calls; the outcome is ok, the exception's name, or failed",
    )
    yield histogram(
        of,
        "call_seconds",
        "method",
        "seconds",
        "time from a call to its answer, the wait for others included",
    )
    yield gauge(of, "loop_late_seconds", "", "seconds", "delay of the event loop at the last check")

    of = ("manager",)
    yield gauge(of, "jobs", "state", "jobs", "unfinished jobs in each state")
    yield counter(of, "jobs_ended", "outcome", "jobs", "jobs that have ended, or failed")
    yield gauge(
        of, "job_info", "job run policy predictor mode", "", "1; a job's run, policy, predictor and mode"
    )
    yield gauge(of, "job_state", "job state", "", "1 for a job's present state")
    yield gauge(of, "job_members", "job", "workers", "members of a job")
    yield gauge(of, "job_expected_members", "job", "workers", "number of workers that a job is to have")
    yield gauge(of, "job_waiting_members", "job", "workers", "members that wait for an answer of the manager")
    yield gauge(of, "job_iteration", "job", "iterations", "the first iteration that is not complete")
    yield gauge(of, "job_epoch", "job", "epochs", "epoch of the last complete iteration")
    yield gauge(of, "job_batch_samples", "job", "samples", "size of the last complete iteration's batch")
    yield gauge(
        of, "job_micro_batch_samples", "job", "samples", "size of a job's micro-batches; 0 in a job without"
    )
    yield histogram(
        of,
        "job_iteration_seconds",
        "job",
        "seconds",
        "durations of iterations; the count is that of barrier rounds",
    )
    yield gauge(of, "job_last_iteration_seconds", "job", "seconds", "duration of the last complete iteration")
    yield gauge(
        of,
        "job_idle_seconds",
        "job",
        "seconds",
        "time since the last complete iteration, or since the job began",
    )
    yield counter(of, "job_samples", "job", "samples", "samples of complete iterations")
    yield counter(
        of, "job_processing_seconds", "job", "seconds", "batch processing times, summed over all workers"
    )
    yield counter(
        of,
        "job_waiting_seconds",
        "job",
        "seconds",
        "waiting times of workers for each other, summed over all workers",
    )
    yield gauge(
        of,
        *("job_waiting_ratio", "job", "ratio"),
        "share of the workers' time in the last complete iteration that they waited",
    )
    yield gauge(
        of,
        *("job_prediction_error_ratio", "job", "ratio"),
        "error of predicted speeds over the measured ones: root mean square over the workers",
    )
    yield gauge(
        of,
        *("job_noise_scale_samples", "job", "samples"),
        "noise scale of the gradients, once it is known to about a factor of two",
    )
    yield gauge(
        of,
        *("job_statistical_efficiency_ratio", "job", "ratio"),
        "progress per sample of the last complete iteration, relative to batches of the script's size",
    )
    yield gauge(
        of,
        *("job_goodput_samples_per_second", "job", "samples per second"),
        "throughput of the last complete iteration times its statistical efficiency",
    )
    yield gauge(
        of,
        *("job_gradient_squared_norm", "job", ""),
        "squared norm of the true gradient, preconditioned with Adam, estimated; may be negative near 0",
    )
    yield gauge(
        of,
        *("job_gradient_variance", "job", ""),
        "trace of the covariance of one sample's gradient, preconditioned with Adam, estimated",
    )
    yield counter(of, "job_rewinds", "job", "attempts", "attempts after the first")
    yield histogram(
        of,
        *("job_group_change_seconds", "job", "seconds"),
        "time from the end of an iteration to that of the next, with another process group between them",
    )
    yield counter(of, "job_pieces", "job", "parts", "parts of iterations that were redone by another worker")
    yield counter(of, "job_members_left", "job", "workers", "members that left by themselves")
    yield counter(of, "job_members_removed", "job", "workers", "members that were taken out")
    yield counter(
        of, "job_members_suspended", "job", "times", "times that a member was silent and others did its part"
    )
    workers = (
        *((one.metric, one.unit, one.meaning) for one in (column.measured for column in COLUMNS)),
        ("samples_per_second", "samples per second", "measured speed of the worker"),
        (
            *("hidden_transfers_ratio", "ratio"),
            "share of the time of the worker's transfers that is hidden behind computing",
        ),
        (
            *("communication_bound", ""),
            "1 where communication is the worker's bottleneck, 0 where computing is",
        ),
    )
    for name, unit, meaning in workers:
        yield gauge(of, f"worker_{name}", "job worker", unit, f"{meaning}; for jobs of few workers")
    for name, unit, meaning in workers:
        yield gauge(of, f"workers_{name}", "job of", unit, f"min, median and max over the workers: {meaning}")
    yield histogram(
        of,
        "policy_seconds",
        "step",
        "seconds",
        "time of a policy to split a batch, or to observe an iteration",
    )
    yield histogram(of, "fit_seconds", "", "seconds", "durations of successful fits of predictors")
    yield counter(of, "fits_failed", "", "fits", "failed fits of predictors")
    yield gauge(of, "state_pending_records", "", "records", "records that wait to be written, with --state")
    yield gauge(
        of, "state_lag_seconds", "", "seconds", "time for which the oldest unwritten record has waited"
    )
    yield gauge(of, "state_behind", "", "", "1 while the state file cannot be written")
    yield counter(
        of, "state_left_out", "", "iterations", "iterations whose records were too many to be held in memory"
    )
    yield histogram(of, "state_write_seconds", "", "seconds", "durations of writes to the state file")

    of = ("ps",)
    run = "job run"
    yield gauge(of, "shard_jobs", "", "jobs", "jobs that the shard holds")
    yield gauge(of, "shard_version", run, "steps", "optimiser's steps that the parameters have had")
    yield gauge(of, "shard_attempt", run, "attempts", "present attempt of the shard")
    yield gauge(of, "shard_parameter_bytes", run, "bytes", "size of the parameters")
    yield gauge(of, "shard_connections", run, "connections", "connections of the job's workers")
    yield gauge(of, "shard_waiting_pulls", run, "calls", "pulls that wait for a step")
    yield counter(of, "shard_pushes", run, "gradients", "received gradients")
    yield counter(of, "shard_duplicates", run, "gradients", "gradients that were dropped as duplicates")
    yield counter(of, "shard_pushed_bytes", run, "bytes", "bytes of received gradients")
    yield counter(of, "shard_pulls", run, "answers", "answers with parameters or an optimiser's state")
    yield counter(of, "shard_pulled_bytes", run, "bytes", "bytes of these answers")
    yield counter(of, "shard_aggregation_seconds", run, "seconds", "time spent on sums of gradients")
    yield histogram(of, "shard_step_seconds", run, "seconds", "durations of the optimiser's steps")
    yield counter(of, "shard_checkpoints", run, "checkpoints", "written checkpoints, with --state")
    yield counter(of, "shard_checkpoints_failed", run, "checkpoints", "checkpoints that could not be written")
    yield counter(of, "shard_checkpoint_seconds", run, "seconds", "time spent on writing checkpoints")
    yield counter(of, "shard_checkpoint_bytes", run, "bytes", "bytes of written checkpoints")
    yield gauge(
        of, "shard_checkpoint_age_seconds", run, "seconds", "time since the last checkpoint was written"
    )

    of = ("partitions",)
    yield gauge(of, "partition_jobs", "", "jobs", "jobs with local partitions")
    yield gauge(of, "partition_members", "job", "workers", "members of a job")
    yield gauge(of, "partition_samples", "job", "samples", "samples of all parts")
    yield gauge(of, "partition_generation", "job", "resets", "resets of the counts since the job began")
    yield gauge(of, "partition_moves", "job", "moves", "moves of samples under way")
    yield gauge(
        of, "partition_gap_traversals", "job", "traversals", "traversals by which the fastest part is ahead"
    )

    of = ("worker",)
    yield gauge(of, "session_info", "job worker run", "", "1; the worker's job, name and run")
    yield gauge(of, "session_iteration", "", "iterations", "present iteration of the worker")
    yield gauge(of, "session_batch_samples", "", "samples", "size of the worker's present part")
    yield gauge(
        of,
        "session_batch_limit_samples",
        "",
        "samples",
        "the most samples that the worker takes, given or learned",
    )
    yield counter(of, "session_iterations", "", "iterations", "finished iterations")
    yield counter(of, "session_samples", "", "samples", "processed samples")
    yield counter(of, "session_pieces", "", "parts", "parts of iterations that were another worker's")
    yield counter(of, "session_rewinds", "", "recoveries", "recoveries that the worker took part in")
    yield counter(of, "session_reconnects", "", "connections", "connections that were lost and made again")
    yield histogram(of, "session_batch_processing_seconds", "", "seconds", "reported batch processing times")
    yield counter(
        of, "session_phase_seconds", "phase", "seconds", "time spent on pull, load, compute, push and report"
    )
    yield counter(
        of, "session_shard_waiting_seconds", "", "seconds", "time for which shards held parameters back"
    )


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
