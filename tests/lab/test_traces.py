"""Traces: the CSV format, made traces, and `evenpace lab trace`."""

import subprocess
import sys
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.records import IterationRecord, WorkerRecord
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
from tests.evenpace.commands import invoke
from tests.services import MemberWorker, manager_process

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


# -- live


@pytest.mark.ci
def test_a_running_job_is_recorded_until_it_ends(tmp_path, wait_until):
    """`evenpace lab trace live` waits for the job, appends its rows as they come, and ends with it."""
    out = tmp_path / "trace.csv"
    with manager_process() as address:
        command = ["live", "--manager", str(address), "--job", "job", "--out", str(out)]
        recording = subprocess.Popen(
            [sys.executable, "-m", "evenpace", "lab", "trace", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        worker = MemberWorker(address, "job")
        for _ in range(30):
            worker.iterate()
        wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == 1 + 29, "the rows so far")
        assert recording.poll() is None
        for _ in range(30):
            worker.iterate()
        worker.close()
        output, _ = recording.communicate(timeout=240)
    assert recording.returncode == 0, output
    assert "The job has ended: 59 new rows in" in output
    ((name, series),) = read_trace(out).items()
    assert (name, series.iterations.tolist()) == ("good", list(range(1, 60)))
    assert set(series.speeds) == {MemberWorker.BATCH / 0.5}


def iteration(k):
    """An iteration of two workers, whose times and usage follow from its number."""
    parts = {
        f"w{number}": WorkerRecord(10, 0.5 + 0.1 * (k % 3) + number, 0.0, ((k + number) % 10) / 10, k % 4 / 8)
        for number in range(2)
    }
    return IterationRecord.of(k, 0, 20, 2.0, parts)


def test_a_recording_is_continued(tmp_path):
    """A second recorder adds what is new; each row has the usage that was reported before its iteration."""
    out = tmp_path / "trace.csv"
    with closing(TraceRecorder(out)):
        pass
    assert out.read_text() == HEADER
    for iterations, rows in ((10, 18), (20, 20), (20, 0)):
        before = out.read_bytes()
        with closing(TraceRecorder(out)) as recorder:
            assert recorder.append([iteration(k) for k in range(iterations)]) == rows
        assert out.read_bytes().startswith(before)
    for name, series in read_trace(out).items():
        assert series.iterations.tolist() == list(range(1, 20))
        for row, k in enumerate(range(1, 20)):
            last, part = (iteration(number).parts[name] for number in (k - 1, k))
            assert series.speeds[row] == part.batch_size / part.batch_processing_time
            assert (series.cpu_usage[row], series.memory_usage[row]) == (last.cpu_usage, last.memory_usage)
