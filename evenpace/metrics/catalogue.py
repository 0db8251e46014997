"""The catalogue of metrics: name, kind, labels, unit and meaning, and the parts that have each.

The collectors take their families from here, so that nothing is exposed that is not listed; the documentation
shows it as a table. It knows no part of a cluster.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
    kind: str  # its type in Prometheus: gauge, counter or histogram
    labels: tuple[str, ...]  # names of its labels
    unit: str  # unit of its values
    parts: tuple[str, ...]  # the parts of a cluster that have it
    meaning: str  # its meaning, which is also its help text

    @property
    def shown(self) -> str:
        """The name in queries, without the endings of histograms."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_OF_WORKERS = (
    *((one.metric, one.unit, one.meaning) for one in (column.measured for column in COLUMNS)),
    ("samples_per_second", "samples per second", "measured speed of the worker"),
    (
        "hidden_transfers_ratio",
        "ratio",
        "share of the time of the worker's transfers that is hidden behind computing",
    ),
    ("communication_bound", "", "1 where communication is the worker's bottleneck, 0 where computing is"),
)
"""Name, unit and meaning of what is measured of each worker, which stands for `*` in the table below."""

# A metric a row: kind, name after `evenpace_`, labels, unit, parts, meaning. Indented lines continue it.
_TABLE = """
gauge | build_info | part version | | all | 1; part and version of this process
gauge | connections | | connections | services | open connections
counter | connections_accepted | | connections | services | accepted connections
counter | connections_refused | | connections | services | connections that were closed with an error
counter | connections_cut_off | | connections | services | connections that were closed without an error
counter | received_bytes | | bytes | services | bytes of received messages, before TLS
counter | sent_bytes | | bytes | services | bytes of sent answers, before TLS
counter | calls | method outcome | calls | services | answered calls; the outcome is ok, the exception's name,
    or failed
histogram | call_seconds | method | seconds | services | time from a call to its answer, the wait for others
    included
gauge | loop_late_seconds | | seconds | services | delay of the event loop at the last check
gauge | jobs | state | jobs | manager | unfinished jobs in each state
counter | jobs_ended | outcome | jobs | manager | jobs that have ended, or failed
gauge | job_info | job run policy predictor mode | | manager | 1; a job's run, policy, predictor and mode
gauge | job_state | job state | | manager | 1 for a job's present state
gauge | job_members | job | workers | manager | members of a job
gauge | job_expected_members | job | workers | manager | number of workers that a job is to have
gauge | job_waiting_members | job | workers | manager | members that wait for an answer of the manager
gauge | job_iteration | job | iterations | manager | the first iteration that is not complete
gauge | job_epoch | job | epochs | manager | epoch of the last complete iteration
gauge | job_batch_samples | job | samples | manager | size of the last complete iteration's batch
gauge | job_micro_batch_samples | job | samples | manager | size of a job's micro-batches; 0 in a job without
histogram | job_iteration_seconds | job | seconds | manager | durations of iterations; the count is that of
    barrier rounds
gauge | job_last_iteration_seconds | job | seconds | manager | duration of the last complete iteration
gauge | job_idle_seconds | job | seconds | manager | time since the last complete iteration, or since the job
    began
counter | job_samples | job | samples | manager | samples of complete iterations
counter | job_processing_seconds | job | seconds | manager | batch processing times, summed over all workers
counter | job_waiting_seconds | job | seconds | manager | waiting times of workers for each other, summed over
    all workers
gauge | job_waiting_ratio | job | ratio | manager | share of the workers' time in the last complete iteration
    that they waited
gauge | job_prediction_error_ratio | job | ratio | manager | error of predicted speeds over the measured ones:
    root mean square over the workers
gauge | job_noise_scale_samples | job | samples | manager | noise scale of the gradients, once it is known to
    about a factor of two
gauge | job_statistical_efficiency_ratio | job | ratio | manager | progress per sample of the last complete
    iteration, relative to batches of the script's size
gauge | job_goodput_samples_per_second | job | samples per second | manager | throughput of the last complete
    iteration times its statistical efficiency
gauge | job_gradient_squared_norm | job | | manager | squared norm of the true gradient, preconditioned with
    Adam, estimated; may be negative near 0
gauge | job_gradient_variance | job | | manager | trace of the covariance of one sample's gradient,
    preconditioned with Adam, estimated
counter | job_rewinds | job | attempts | manager | attempts after the first
histogram | job_group_change_seconds | job | seconds | manager | time from the end of an iteration to that of
    the next, with another process group between them
counter | job_pieces | job | parts | manager | parts of iterations that were redone by another worker
counter | job_members_left | job | workers | manager | members that left by themselves
counter | job_members_removed | job | workers | manager | members that were taken out
counter | job_members_suspended | job | times | manager | times that a member was silent and others did its
    part
gauge | worker_* | job worker | * | manager | *; for jobs of few workers
gauge | workers_* | job of | * | manager | min, median and max over the workers: *
histogram | policy_seconds | step | seconds | manager | time of a policy to split a batch, or to observe an
    iteration
histogram | fit_seconds | | seconds | manager | durations of successful fits of predictors
counter | fits_failed | | fits | manager | failed fits of predictors
gauge | state_pending_records | | records | manager | records that wait to be written, with --state
gauge | state_lag_seconds | | seconds | manager | time for which the oldest unwritten record has waited
gauge | state_behind | | | manager | 1 while the state file cannot be written
counter | state_left_out | | iterations | manager | iterations whose records were too many to be held in
    memory
histogram | state_write_seconds | | seconds | manager | durations of writes to the state file
gauge | shard_jobs | | jobs | ps | jobs that the shard holds
gauge | shard_version | job run | steps | ps | optimiser's steps that the parameters have had
gauge | shard_attempt | job run | attempts | ps | present attempt of the shard
gauge | shard_parameter_bytes | job run | bytes | ps | size of the parameters
gauge | shard_connections | job run | connections | ps | connections of the job's workers
gauge | shard_waiting_pulls | job run | calls | ps | pulls that wait for a step
counter | shard_pushes | job run | gradients | ps | received gradients
counter | shard_duplicates | job run | gradients | ps | gradients that were dropped as duplicates
counter | shard_pushed_bytes | job run | bytes | ps | bytes of received gradients
counter | shard_pulls | job run | answers | ps | answers with parameters or an optimiser's state
counter | shard_pulled_bytes | job run | bytes | ps | bytes of these answers
counter | shard_aggregation_seconds | job run | seconds | ps | time spent on sums of gradients
histogram | shard_step_seconds | job run | seconds | ps | durations of the optimiser's steps
counter | shard_checkpoints | job run | checkpoints | ps | written checkpoints, with --state
counter | shard_checkpoints_failed | job run | checkpoints | ps | checkpoints that could not be written
counter | shard_checkpoint_seconds | job run | seconds | ps | time spent on writing checkpoints
counter | shard_checkpoint_bytes | job run | bytes | ps | bytes of written checkpoints
gauge | shard_checkpoint_age_seconds | job run | seconds | ps | time since the last checkpoint was written
gauge | partition_jobs | | jobs | partitions | jobs with local partitions
gauge | partition_members | job | workers | partitions | members of a job
gauge | partition_samples | job | samples | partitions | samples of all parts
gauge | partition_generation | job | resets | partitions | resets of the counts since the job began
gauge | partition_moves | job | moves | partitions | moves of samples under way
gauge | partition_gap_traversals | job | traversals | partitions | traversals by which the fastest part is
    ahead
gauge | session_info | job worker run | | worker | 1; the worker's job, name and run
gauge | session_iteration | | iterations | worker | present iteration of the worker
gauge | session_batch_samples | | samples | worker | size of the worker's present part
gauge | session_batch_limit_samples | | samples | worker | the most samples that the worker takes, given or
    learned
counter | session_iterations | | iterations | worker | finished iterations
counter | session_samples | | samples | worker | processed samples
counter | session_pieces | | parts | worker | parts of iterations that were another worker's
counter | session_rewinds | | recoveries | worker | recoveries that the worker took part in
counter | session_reconnects | | connections | worker | connections that were lost and made again
histogram | session_batch_processing_seconds | | seconds | worker | reported batch processing times
counter | session_phase_seconds | phase | seconds | worker | time spent on pull, load, compute, push and
    report
counter | session_shard_waiting_seconds | | seconds | worker | time for which shards held parameters back
"""


def _read(table: str) -> Iterator[DescribedMetric]:
    """Read the rows of a table; one with `*` describes a metric for each of `_OF_WORKERS`."""
    for row in table.replace("\n    ", " ").strip().splitlines():
        kind, name, labels, unit, part, meaning = (cell.strip() for cell in row.split("|"))
        parts = {"all": PARTS, "services": SERVICES}.get(part, (part,))
        for of, its_unit, its_meaning in _OF_WORKERS if "*" in name else [("", unit, "")]:
            yield DescribedMetric(
                name=f"evenpace_{name.replace('*', of)}",
                kind=kind,
                labels=tuple(labels.split()),
                unit=its_unit,
                parts=parts,
                meaning=meaning.replace("*", its_meaning),
            )


METRICS = {metric.name: metric for metric in _read(_TABLE)}


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
