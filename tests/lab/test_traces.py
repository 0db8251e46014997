"""Traces: the CSV format, made traces, and `evenpace lab trace`."""

import gzip
import subprocess
import sys
import threading
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import idl
from idl.records import IterationRecord
from lab.observer import Observer
from lab.trace_contention import ContentionTraceConfig, contention_trace
from lab.trace_usage import UsageTraceConfig, usage_trace
from lab.traces import (
    Perturbation,
    Series,
    TraceRecorder,
    read_trace,
    read_usage,
    response,
    write_trace,
)
from rpc.client import Client
from tests.evenpace.commands import invoke
from tests.services import join_request, manager_process, manager_service, serving

NAN = float("nan")
CALM = Perturbation(noise=0, spikes=0)
HEADER = "worker,iteration,speed,cpu,memory\n"


invoke_trace = partial(invoke, "lab", "trace")


def assert_equal(one, other):
    """Two traces have the same workers and the very same numbers."""
    assert list(one) == list(other)
    for worker, series in one.items():
        for name, values in vars(series).items():
            np.testing.assert_array_equal(values, getattr(other[worker], name))


# -- the format


SPEEDS = st.one_of(st.floats(1e-300, 1e300), st.just(NAN))
SHARES = st.floats(0, 1)


@st.composite
def traces(draw):
    """Some workers, each with iterations of its own."""
    trace = {}
    for worker in draw(st.lists(st.text("a,\"'é\n-", min_size=1), min_size=1, max_size=3, unique=True)):
        iterations = sorted(draw(st.sets(st.integers(0, 2**40), min_size=1, max_size=5)))
        columns = [
            np.array(draw(st.lists(kind, min_size=len(iterations), max_size=len(iterations))))
            for kind in (SPEEDS, SHARES, SHARES, SPEEDS)
        ]
        trace[worker] = Series(np.array(iterations), *columns)
    return trace


@settings(deadline=None, max_examples=50)
@given(traces())
def test_what_is_written_is_read_back(tmp_path_factory, trace):
    """A trace comes back from its file with the very same numbers, whatever the workers' names."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    write_trace(trace, path)
    back = read_trace(path)
    assert_equal({worker: back[worker] for worker in trace}, trace)
    assert len(back) == len(trace)


def test_rows_and_columns_may_be_in_any_order(tmp_path):
    """Iterations are sorted, gaps stay gaps, an empty speed is NaN, and a gzipped file is unpacked."""
    path = tmp_path / "trace.csv.gz"
    text = "cpu,worker,memory,speed,iteration\n0.5,b,0.25,,7\n0,a,1,3.5,2\n1,b,0,4e1,3\n"
    path.write_bytes(gzip.compress(text.encode()))
    trace = read_trace(path)

    assert list(trace) == ["b", "a"]
    assert trace["b"].iterations.tolist() == [3, 7]
    np.testing.assert_array_equal(trace["b"].speeds, [40, NAN])
    assert trace["b"].cpu_usage.tolist() == [1, 0.5]
    assert trace["b"].memory_usage.tolist() == [0, 0.25]
    assert np.isnan(trace["b"].expected).all()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        HEADER.encode() + b"\xff,1,1,0,0\n",
        # Without the time in it: processes that share the tests must find the same ones.
        gzip.compress((HEADER + "w,1,1,0,0\n").encode(), mtime=0)[:-9],
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content):
    """Bytes that are not UTF-8, and a gzipped file that is cut off, are named as such."""
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"trace.csv.*(not CSV in UTF-8|no column)"):
        read_trace(path)


# -- made traces


USAGE = "vm,step,cpu_percent,mem_percent\n"


@pytest.fixture
def usage_file(tmp_path):
    """Three machines with four steps each."""
    path = tmp_path / "usage.csv"
    cpu = {"a": (0, 100, 50, 20), "b": (10, 20, 30, 40), "c": (90, 80, 70, 60)}
    rows = [f"{vm},{step},{values[step]},50\n" for vm, values in cpu.items() for step in range(4)]
    path.write_text(USAGE + "".join(rows))
    return path


def test_usage_over_100_percent_counts_as_100(tmp_path):
    """Percentages become shares, at most 1."""
    path = tmp_path / "usage.csv"
    path.write_text(USAGE + "a,0,25,215\n")
    cpu, memory = read_usage(path)["a"]
    assert (cpu.tolist(), memory.tolist()) == ([0.25], [1.0])


def test_the_response_hand_worked():
    """Speed is the free CPU, at least 5%, and half of that where all memory is in use."""
    cpu = np.array([0.0, 0.25, 1.0, 0.5, 0.5, 0.5])
    memory = np.array([0.0, 0.9, 0.5, 1.0, 0.95, 0.9])
    assert response(cpu, memory) == pytest.approx([1, 0.75, 0.05, 0.25, 0.375, 0.5])


def test_usage_is_interpolated_and_machines_are_chained(usage_file):
    """Between steps usage moves evenly, from the end of one machine to the beginning of the next, too."""
    config = UsageTraceConfig(machines=("a", "b"), iterations=11, iterations_per_step=2, perturbation=CALM)
    trace = usage_trace(read_usage(usage_file), config)
    series = trace["worker-0"]

    assert list(trace) == ["worker-0"]
    assert series.cpu_usage == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.35, 0.2, 0.15, 0.1, 0.15, 0.2])
    assert series.speeds == pytest.approx(series.speeds[0] * np.maximum(0.05, 1 - series.cpu_usage))
    np.testing.assert_array_equal(series.expected, series.speeds)


def test_contention_comes_and_goes():
    """Without noise, speed is full or slowed, for 20 to 60 iterations, with one between in each flip."""
    series = contention_trace(
        ContentionTraceConfig(workers=1, iterations=5000, usage_noise=0, perturbation=CALM)
    )["worker-0"]
    share = series.speeds / series.speeds.max()
    contended = series.cpu_usage == 0.5
    assert set(np.unique(series.cpu_usage)) == {0, 0.5}
    flips = np.flatnonzero(contended[1:] != contended[:-1])  # the last iteration of each period
    lengths = np.diff(flips)
    assert lengths.min() >= 20
    assert lengths.max() <= 60
    assert len(set(lengths.tolist())) > 20
    steady = np.ones(len(share), dtype=bool)
    steady[flips] = False
    assert share[steady] == pytest.approx(np.where(contended, 0.5, 1.0)[steady])
    assert np.all((share[flips] > 0.5) & (share[flips] < 1))


@pytest.mark.parametrize("kind", ["contention", "usage"])
def test_the_floor_is_right(kind):
    """`expected` is the speeds' mean given what is known: unbiased, also within flips and spikes."""
    if kind == "contention":
        trace = contention_trace(ContentionTraceConfig(workers=50, iterations=4000, seed=3))
    else:
        steps = np.linspace(0, 1, 401)
        machines = {str(i): (steps, steps[::-1]) for i in range(50)}
        trace = usage_trace(machines, UsageTraceConfig(workers=50, iterations=4000, seed=3))
    errors = np.concatenate([1 - series.speeds / series.expected for series in trace.values()])
    # 200,000 rows with relative errors of about 0.11: 5 standard errors.
    assert abs(errors.mean()) < 5 * errors.std() / np.sqrt(len(errors))
    if kind == "usage":
        # Var(noise * spike) / mean^2, worked out from the moments of both.
        mean, square = 0.97 + 0.03 * 0.5, 0.97 + 0.03 * 0.25
        assert errors.var() == pytest.approx((1 + 0.05**2) * square / mean**2 - 1, rel=0.05)


def test_the_floor_knows_a_periods_age():
    """Rows in which a period is sure to end, or cannot end yet, are expected without bias each."""
    trace = contention_trace(
        ContentionTraceConfig(workers=300, iterations=2000, usage_noise=0, perturbation=CALM)
    )
    ages, errors = [], []
    for series in trace.values():
        flips = np.flatnonzero(np.diff(series.cpu_usage)) + 1
        age = np.arange(2000) - flips[np.searchsorted(flips, np.arange(2000), side="right") - 1] + 1
        known = slice(flips[0], None)
        ages.append(age[known])
        errors.append(1 - (series.speeds / series.expected)[known])
    ages, errors = np.concatenate(ages), np.concatenate(errors)
    assert np.abs(errors[ages < 20]).max() < 1e-12
    for first, last in ((20, 35), (36, 50), (51, 60)):
        part = errors[(ages >= first) & (ages <= last)]
        assert part.std() > 0
        assert abs(part.mean()) < 5 * part.std() / np.sqrt(len(part))


@pytest.mark.parametrize("kind", ["contention", "usage"])
def test_made_traces_are_the_same_for_a_seed(tmp_path, usage_file, kind):
    """The same command gives the same bytes, another seed others; options reach the trace."""
    command = (
        [kind, "--workers", 2] if kind == "contention" else [kind, usage_file, "--iterations-per-step", 50]
    )
    command += ["--iterations", 120] + (["--vms", "c,a"] if kind == "usage" else [])
    files = [tmp_path / f"{i}.csv" for i in range(3)]
    for path, seed in zip(files, (5, 5, 6), strict=True):
        result = invoke_trace(*command, "--seed", seed, "--out", path)
        assert result.exit_code == 0, result.output
        assert "240 rows of 2 workers" in result.output
    assert files[0].read_bytes() == files[1].read_bytes() != files[2].read_bytes()
    trace = read_trace(files[0])
    assert [len(series.iterations) for series in trace.values()] == [120, 120]
    if kind == "usage":
        assert trace["worker-0"].cpu_usage[:51:50].tolist() == [0.9, 0.8]
        assert trace["worker-1"].cpu_usage[:51:50].tolist() == [0.0, 1.0]


def test_a_worker_is_the_same_among_others():
    """More workers do not change the series of the first ones."""
    assert_equal(
        {"worker-0": contention_trace(ContentionTraceConfig(workers=3, iterations=99))["worker-0"]},
        contention_trace(ContentionTraceConfig(workers=1, iterations=99)),
    )


# -- live


class Worker:
    """Worker, one of a job's two, that reports times and usage that follow from the iteration."""

    def __init__(self, address, name, job="job"):
        self.identity = idl.common.Identity(job, name, f"{name:0>32}".replace("w", "0"))
        self.name = name
        self.client = Client(idl.batchsize_manager.BatchSizeManager, address, "manager", call_timeout=240)
        self.counts = []

    def run(self, iterations):
        """Join if need be, and go on by so many iterations."""
        if not self.counts:
            self.take(self.client.call("join", join_request(self.identity)))
        for _ in range(iterations):
            k = len(self.counts) - 1
            request = idl.batchsize_manager.ReportRequest(self.identity, k, *self.report(k))
            self.take(self.client.call("report", request))

    def take(self, reply):
        """Keep the batch size that was given."""
        self.counts.append(reply.assignment.count)

    def report(self, k):
        """Batch processing time, waiting time, CPU and memory usage."""
        number = int(self.name[1:])
        return (0.5 + 0.1 * (k % 3) + number, 0.0, ((k + number) % 10) / 10, (k % 4) / 8)

    def leave(self):
        """Leave the job."""
        self.client.call("leave", idl.batchsize_manager.LeaveRequest(self.identity))
        self.client.close()

    def assert_recorded(self, series, last):
        """The series has iterations 1 to `last`, each with the usage that was reported before."""
        assert series.iterations.tolist() == list(range(1, last + 1))
        for row, k in enumerate(range(1, last + 1)):
            assert series.speeds[row] == self.counts[k] / self.report(k)[0]
            assert (series.cpu_usage[row], series.memory_usage[row]) == self.report(k - 1)[2:]


def run_all(workers, iterations):
    """Let the workers run side by side; each waits for the others in every iteration."""
    threads = [threading.Thread(target=worker.run, args=(iterations,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=240)
        assert not thread.is_alive()


def live_process(address, out):
    """A real `evenpace lab trace live`."""
    command = ["live", "--manager", str(address), "--job", "job", "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "-m", "evenpace", "lab", "trace", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.ci
def test_a_running_job_is_recorded_until_it_ends(tmp_path, wait_until):
    """`evenpace lab trace live` waits for the job, appends its rows as they come, and ends with it."""
    out = tmp_path / "trace.csv"
    with manager_process("--workers", "2") as address:
        recording = live_process(address, out)
        workers = [Worker(address, name) for name in ("w1", "w2")]
        run_all(workers, 30)
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == 1 + 2 * 29, "the rows so far")
        assert recording.poll() is None
        run_all(workers, 30)
        for worker in workers:
            worker.leave()
        output, _ = recording.communicate(timeout=240)
    assert recording.returncode == 0, output
    assert "The job has ended: 118 new rows in" in output
    trace = read_trace(out)
    assert sorted(trace) == ["w1", "w2"]
    for worker in workers:
        worker.assert_recorded(trace[worker.name], 59)


@pytest.fixture
def observed():
    """A manager in this process, and two workers of a job."""
    with serving(manager_service(workers=2)) as address:
        yield address, [Worker(address, name) for name in ("w1", "w2")]


def history(address):
    """All iterations that the manager knows of."""
    with closing(Observer(address, (), "job")) as observer:
        assert observer.poll()
        return observer.iterations


def changed(record, parts):
    """The same iteration with other parts."""
    return IterationRecord.of(record.iteration, record.epoch, record.total, record.duration, parts)


def test_a_recording_is_continued(tmp_path, observed):
    """A second recorder adds what is new and changes nothing else, wherever the first one stopped."""
    address, workers = observed
    out = tmp_path / "trace.csv"
    with closing(TraceRecorder(out)):
        pass
    assert out.read_text() == HEADER
    sizes = [len(HEADER)]
    for rows in (18, 20, 0):
        run_all(workers, rows // 2 + (rows == 18))
        with closing(TraceRecorder(out)) as recorder:
            before = out.read_bytes()
            assert recorder.append(history(address)) == rows
        assert out.read_bytes().startswith(before)
        sizes.append(out.stat().st_size)
    assert sizes == sorted(sizes)
    trace = read_trace(out)
    for worker in workers:
        worker.assert_recorded(trace[worker.name], 19)


def test_a_worker_that_comes_back_lacks_one_row(tmp_path, observed):
    """After a gap the usage before is not known: the first iteration is left out again."""
    address, workers = observed
    run_all(workers, 5)
    iterations = history(address)
    iterations[2] = changed(iterations[2], {"w1": iterations[2].parts["w1"]})
    idle = iterations[4].parts["w1"]._replace(batch_size=0)
    iterations[4] = changed(iterations[4], iterations[4].parts | {"w1": idle})
    with closing(TraceRecorder(tmp_path / "trace.csv")) as recorder:
        assert recorder.append(iterations) == 6
    trace = read_trace(tmp_path / "trace.csv")
    assert trace["w1"].iterations.tolist() == [1, 2, 3, 4]
    assert trace["w2"].iterations.tolist() == [1, 4]
    assert np.isnan(trace["w1"].speeds).tolist() == [False, False, False, True]


def test_another_runs_file_is_left_alone(tmp_path, observed):
    """Rows of another run, or ones that the manager has forgotten, are not mixed with the job's."""
    address, workers = observed
    run_all(workers, 5)
    iterations = history(address)
    out = tmp_path / "trace.csv"
    for last in ("w1,3,12.5,0.5,0.5\n", "w1,0,12.5,0.5,0.5\n"):
        out.write_text(HEADER + last)
        with closing(TraceRecorder(out)) as recorder, pytest.raises(ValueError, match="is not this job's"):
            recorder.append(iterations)
        assert out.read_text() == HEADER + last


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("some notes\n", "there is such a file, and it does not begin with worker,iteration"),
        (HEADER.replace("\n", ",expected\n"), "does not begin with worker,iteration,speed,cpu,memory"),
        (HEADER + "w,1,3.5,0.", "the last line is cut off"),
        (HEADER + "w,1,3.5,0.5,7\n", "line 2: memory '7'"),
    ],
)
def test_a_file_that_cannot_be_continued_is_refused(tmp_path, content, message):
    """The error says why, and the file stays as it is."""
    out = tmp_path / "trace.csv"
    out.write_text(content)
    with pytest.raises(ValueError, match=message):
        TraceRecorder(out)
    assert out.read_text() == content


def test_a_job_that_never_comes_ends_the_wait(tmp_path, manager):
    """`--idle` bounds the wait, and the error names the job."""
    result = invoke_trace(
        "live", "--manager", manager, "--job", "nil", "--idle", 0.1, "--out", tmp_path / "t.csv"
    )
    assert result.exit_code == 1
    assert "no iteration of job 'nil' has ended within 0.1 s" in result.output


def test_a_job_that_stands_still_ends_the_recording(tmp_path, observed):
    """After `--idle` seconds without an iteration the recording ends, with what there was."""
    address, workers = observed
    run_all(workers, 3)
    result = invoke_trace(
        "live", "--manager", address, "--job", "job", "--idle", 0.1, "--out", tmp_path / "t.csv"
    )
    assert result.exit_code == 0
    assert "No iteration has ended for 0.1 s: 4 new rows" in result.output


@pytest.mark.ci
def test_a_manager_that_goes_ends_the_recording(tmp_path, wait_until):
    """The rows recorded so far are kept, and the command gives the reason of its end."""
    out = tmp_path / "trace.csv"
    with manager_process("--workers", "2") as address:
        recording = live_process(address, out)
        workers = [Worker(address, name) for name in ("w1", "w2")]
        run_all(workers, 5)
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == 1 + 2 * 4, "the rows so far")
    output, _ = recording.communicate(timeout=240)
    for worker in workers:
        worker.client.close()  # not before: the job would end, too
    assert recording.returncode == 0, output
    assert "The manager has gone: 8 new rows in" in output
