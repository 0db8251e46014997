"""Metrics: real processes expose those of the catalogue, with right values, to allowed peers alone."""

import contextlib
import math
import re
import ssl
import urllib.error
import urllib.request
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from evenpace.metrics.catalogue import METRICS, PARTS, Families
from evenpace.metrics.endpoint import exposed
from evenpace.metrics.manager import gradient_noise, last_iteration, manager_collector, progress
from evenpace.metrics.server import PartCollector
from evenpace.observing import Observing
from idl.errors import InvalidRequestError
from idl.noise import Noise
from idl.records import COLUMNS, IterationRecord, WorkerRecord
from lab.bench.loopback_certificates import for_loopback
from rpc.address import Address
from rpc.counters import Histogram
from rpc.limits import ServerLimits
from rpc.server import Security, Server
from tests.evenpace.commands import evenpace
from tests.evenpace.observed import JOB, WORKERS, described, observed_cluster, partition_holder, samples
from tests.services import ANYWHERE, MemberWorker, Raw, manager_service, serving
from worker.meter import BackwardTimes

THE_LIBRARYS = re.compile("process_|python_")
OF_OTHER_JOBS = {
    f"evenpace_{workers}_{metric}"
    for metric in (
        *(column.measured.metric for column in COLUMNS if column.name in BackwardTimes._fields),
        "hidden_transfers_ratio",
        "batch_cost",
    )
    for workers in ("worker", "workers")
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, wait_until):
    """A cluster that trains, with metrics and traces."""
    with observed_cluster(tmp_path_factory.mktemp("observed")) as running:
        wait_until(lambda: all(map(running.metrics, running.popens)), "the endpoints")
        wait_until(
            lambda: value(running.scrape("ps"), "evenpace_shard_checkpoint_age_seconds") is not None,
            "a checkpoint",
            240,
        )
        wait_until(
            lambda: value(running.scrape("manager"), "evenpace_job_prediction_error_ratio") is not None,
            "an iteration that was predicted",
        )
        yield running


def value(scraped, name, **labels):
    """Return the value of the first sample with such labels; None without one."""
    found = (v for n, had, v in scraped if n == name and labels.items() <= had.items())
    return next(found, None)


def scraped_with_noise(cluster, wait_until):
    """Return the manager's metrics at a time when the noise scale is known, as it is again and again."""
    found = []

    def is_known():
        found[:] = cluster.scrape("manager")
        return value(found, "evenpace_job_noise_scale_samples") is not None

    wait_until(is_known, "a known noise scale", 240)
    return found


@pytest.mark.slow
def test_exactly_the_catalogue_is_exposed(cluster, wait_until):
    """Each metric of the catalogue has a sample with its labels in a real run, and there are no others."""
    with partition_holder(cluster.partitions):
        scraped = {
            "manager": scraped_with_noise(cluster, wait_until),
            "ps": cluster.scrape("ps"),
            "partitions": cluster.scrape("partitions"),
            "worker": cluster.scrape("worker 0"),
        }
    assert scraped.keys() == set(PARTS)
    for part, found in scraped.items():
        ours = [(name, labels) for name, labels, _ in found if not THE_LIBRARYS.match(name)]
        shown = set()
        for name, labels in ours:
            metric = described(name)
            assert metric is not None, name
            assert part in metric.parts
            assert set(labels) - {"le"} == set(metric.labels), name
            shown.add(metric.name)
        expected = {metric.name for metric in METRICS.values() if part in metric.parts}
        assert shown == expected - OF_OTHER_JOBS
        assert {"process_cpu_seconds_total", "python_info"} <= {name for name, _, _ in found}


@pytest.mark.slow
def test_the_parts_agree(cluster, wait_until):
    """Manager, shard and worker go on, count the same samples, and use the same workers' names."""
    before = cluster.scrape("manager")
    wait_until(
        lambda: (
            value(cluster.scrape("manager"), "evenpace_job_iteration", job=JOB)
            > value(before, "evenpace_job_iteration", job=JOB) + 5
        ),
        "more iterations",
    )
    # They go on while they are asked: a bound is by what was read before, or after.
    earlier, worker, shard, manager = map(cluster.scrape, ("manager", "worker 0", "ps", "manager"))
    rounds_before, rounds = (
        value(scraped, "evenpace_job_iteration_seconds_count", job=JOB) for scraped in (earlier, manager)
    )
    assert value(manager, "evenpace_job_samples_total") >= 15 * rounds_before  # the last batch is smaller
    assert value(earlier, "evenpace_job_samples_total") <= 16 * rounds
    assert value(manager, "evenpace_calls_total", method="report", outcome="ok") >= 2 * (rounds_before - 2)
    assert value(shard, "evenpace_shard_version", job=JOB) <= rounds + 2
    assert value(worker, "evenpace_session_iterations_total") <= rounds + 1
    assert value(worker, "evenpace_session_samples_total") > 0
    assert value(shard, "evenpace_shard_pushes_total") <= 2 * (rounds + 2)
    sizes = {labels["worker"]: v for name, labels, v in manager if name == "evenpace_worker_batch_samples"}
    assert sizes.keys() == set(WORKERS)
    assert sum(sizes.values()) == value(manager, "evenpace_job_batch_samples", job=JOB)
    seconds = {
        labels["phase"]: v for name, labels, v in worker if name == "evenpace_session_phase_seconds_total"
    }
    assert seconds.keys() == {"pull", "load", "compute", "push", "report"}
    assert all(seconds.values())
    assert value(manager, "evenpace_job_state", job=JOB, state="running") == 1


def test_metrics_are_in_base_units():
    """No name of a metric has another unit in it."""
    for name in METRICS:
        assert not re.search("_(ms|millis|minutes|kib|mib|percent)(_|$)", name)


# -- figures


@contextlib.contextmanager
def registered(collector):
    """A function that scrapes a collector."""
    registry = CollectorRegistry()
    registry.register(collector)
    yield lambda: samples(generate_latest(registry).decode())


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["C"]), min_size=1),
        st.builds(
            WorkerRecord,
            st.integers(0, 1000),
            st.floats(1e-6, 1e3),
            st.floats(0, 1e3),
            st.floats(0, 1),
            st.floats(0, 1),
            st.just(math.nan) | st.floats(1e-3, 1e6),
            st.integers(1, 1024),
            cost=st.just(math.nan) | st.floats(1e-3, 1e6),
        ).map(lambda part: part if part.batch_size else part._replace(cost=math.nan)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 8),
)
def test_figures_of_workers_are_those_of_the_record(workers, most):
    """Few workers have metrics of their own, and all have a spread, whatever their names and values."""
    total = sum(worker.batch_size for worker in workers.values())
    record = IterationRecord.of(3, 0, total, 2.0, workers)
    fill = partial(last_iteration, job="job", record=record, most_workers=most)
    with registered(PartCollector("manager", fill)) as scrape:
        found = scrape()
    own = {labels["worker"]: v for n, labels, v in found if n == "evenpace_worker_batch_samples"}
    sizes = [worker.batch_size for worker in workers.values()]
    assert own == ({n: w.batch_size for n, w in workers.items()} if len(workers) <= most else {})
    spread = [value(found, "evenpace_workers_batch_samples", of=of) for of in ("min", "median", "max")]
    assert spread == [min(sizes), np.median(sizes), max(sizes)]
    most_at_once = value(found, "evenpace_workers_micro_batches_at_once", of="max")
    assert most_at_once == max(worker.at_once for worker in workers.values())
    speeds = [w.speed for w in workers.values() if not math.isnan(w.speed)]
    fastest = value(found, "evenpace_workers_samples_per_second", of="max")
    assert fastest == (pytest.approx(max(speeds)) if speeds else None)
    errors = [
        abs(w.predicted_speed / w.speed - 1)
        for w in workers.values()
        if not math.isnan(w.speed) and not math.isnan(w.predicted_speed)
    ]
    told = value(found, "evenpace_job_prediction_error_ratio")
    assert told == (pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-9) if errors else None)


def test_hidden_transfers_are_among_the_metrics_of_workers_that_measured_them():
    """By the definition of the figures; a worker that did not measure them has neither metric."""
    workers = {
        name: WorkerRecord(10, 2.0, 2.0, 0.0, 0.5, math.nan, 1, math.nan, *times)
        for name, times in (("slow", (1.0, 0.2, 1.2, 0.4)), ("fast", (2.0, 0.4, 1.2, 0.4)), ("other", ()))
    }
    record = IterationRecord.of(3, 0, 30, 4.0, workers)
    fill = partial(last_iteration, job="job", record=record, most_workers=3)
    with registered(PartCollector("manager", fill)) as scrape:
        found = scrape()
    for metric, told in (("hidden_transfers_ratio", (0.5, 0.75)), ("communication_bound", (1.0, 0.0))):
        own = {labels["worker"]: v for n, labels, v in found if n == f"evenpace_worker_{metric}"}
        assert own == pytest.approx(dict(zip(("slow", "fast"), told, strict=True)))
        assert value(found, f"evenpace_workers_{metric}", of="median") == pytest.approx(sum(told) / 2)


@pytest.mark.parametrize(
    ("noise", "told"),
    [
        (Noise(0.5, 40.0, 0.05, 1.0), (80.0, 0.5, 40.0, 0.5, 80.0)),
        (Noise(0.5, 40.0, 0.5, 1.0), (None, 0.5, 40.0, None, None)),  # the squared norm may be 0
        (Noise(0.5, 40.0, math.inf, math.inf), (None, None, None, None, None)),
    ],
)
def test_figures_of_gradient_noise_are_there_once_they_are_known(noise, told):
    """The scale is told once it is known, the two that it is made of once their errors are.

    With a scale of 80 samples, each of a batch of 320 is worth half of one in the script's 120.
    """
    record = IterationRecord.of(3, 0, 320, 2.0, {"w": WorkerRecord(320, 1.0)})

    def fill(families):
        gradient_noise(families, job="job", noise=noise)
        progress(families, job="job", record=record, noise=noise, first_size=120)

    with registered(PartCollector("manager", fill)) as scrape:
        found = scrape()
    names = ("noise_scale_samples", "gradient_squared_norm", "gradient_variance")
    names += ("statistical_efficiency_ratio", "goodput_samples_per_second")
    assert tuple(value(found, f"evenpace_job_{name}", job="job") for name in names) == told


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_as_prometheus_does(values):
    """Each bucket counts the values up to its bound, and the last counts all."""
    tally = Histogram()
    for each in values:
        tally.add(each)
    families = Families("manager")
    families.fill("fit_seconds", tally)
    (family,) = (f for f in families if f.name == "evenpace_fit_seconds")
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            assert sample.value == sum(each <= float(sample.labels["le"]) for each in values)
        elif sample.name.endswith("_sum"):
            assert sample.value == pytest.approx(sum(values))


def test_jobs_that_have_ended_disappear(wait_until):
    """A job's metrics are there from its first worker on, and vanish with its end."""
    service = manager_service()
    collector = manager_collector(service, Server(service, ServerLimits(), Security()), 64)
    with serving(service) as address, registered(collector) as scrape:
        worker = MemberWorker(address, "short", micro_batch=5)
        worker.iterate()
        during = scrape()
        worker.close()

        def without_the_job():
            """Return the metrics once the job's end, which follows the worker's answer, is counted."""
            found = scrape()
            over = value(found, "evenpace_jobs_ended_total", outcome="ended")
            return found if over and not any("job" in labels for _, labels, _ in found) else None

        after = wait_until(without_the_job, "the job's end")
    assert value(during, "evenpace_jobs", state="running") == 1
    assert value(during, "evenpace_job_members", job="short") == 1
    assert value(during, "evenpace_job_micro_batch_samples", job="short") == 5
    assert value(during, "evenpace_job_iteration_seconds_count", job="short") == 1
    assert value(after, "evenpace_jobs_ended_total", outcome="ended") == 1


# -- the endpoint


def build_info():
    """A collector without metrics of its own."""
    return PartCollector("manager")


def fetch(address, context=None):
    """Return the status of a scrape."""
    scheme = "https" if context else "http"
    with urllib.request.urlopen(f"{scheme}://{address}/metrics", timeout=60, context=context) as answer:
        return samples(answer.read().decode())


def test_a_port_in_use_is_told_in_one_line():
    """A service that cannot expose its metrics says why in one line, and does not start."""
    with exposed(ANYWHERE, build_info(), None) as address:
        done = evenpace("manager", "--listen", "127.0.0.1:0", "--metrics", address)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"Error: metrics at {address}: the port is in use; stop what listens there or choose another\n"
    )


def test_beyond_loopback_metrics_need_what_services_need(tmp_path):
    """Metrics are exposed to other machines only with TLS and tokens, or --insecure."""
    anywhere = Observing(Address("0.0.0.0", 9300))
    with pytest.raises(InvalidRequestError, match="without TLS and tokens"):
        anywhere.check(Security())
    anywhere.check(Security(insecure=True))
    Observing(Address("127.0.0.1", 9300)).check(Security())
    with pytest.raises(InvalidRequestError, match="without TLS"):
        anywhere.check_worker(None, insecure=False)
    anywhere.check_worker(None, insecure=True)
    with for_loopback() as (credentials, _):
        anywhere.check_worker(credentials, insecure=False)
        with pytest.raises(InvalidRequestError, match="without tokens"):
            anywhere.check(Security(credentials))


def test_a_scrape_over_tls_needs_a_certificate():
    """One of the authority's; plain HTTP gets nothing, and connections that are silent stop nobody."""
    with for_loopback() as (credentials, _), exposed(ANYWHERE, build_info(), credentials) as address:
        context = credentials.contexts(server=False).current()
        with Raw(address), Raw(address):
            assert value(fetch(address, context), "evenpace_build_info", part="manager") == 1
        stranger = ssl.create_default_context(cafile=str(credentials.ca))
        for wrong in (stranger, None):
            with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
                fetch(address, wrong)
