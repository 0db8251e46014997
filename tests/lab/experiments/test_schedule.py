"""Schedules of contention: who is disturbed when."""

import gzip
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.experiments.contention_schedule import (
    Schedule,
    Task,
    random_schedule,
    read_schedule,
    trace_schedule,
    write_schedule,
)

TASKS = st.builds(
    lambda worker, start, length, cpu, memory: Task(worker, start, start + length, cpu, memory),
    st.integers(0, 9),
    st.floats(0, 1e6),
    st.floats(0.5, 1e6),
    st.floats(0, 1),
    st.floats(0, 0.99),
)


def write_usage(path, *machines):
    """A file of machines' usage: for each machine its percentages of CPU, step by step."""
    rows = [f"{vm},{step},{cpu},20" for vm, steps in enumerate(machines) for step, cpu in enumerate(steps)]
    path.write_bytes(gzip.compress("\n".join(["vm,step,cpu_percent,mem_percent", *rows]).encode()))
    return path


@settings(deadline=None)
@given(st.lists(TASKS, max_size=20))
def test_round_trip(tmp_path_factory, tasks):
    """A schedule that is written and read stays the same."""
    path = tmp_path_factory.mktemp("schedule") / "schedule.csv"
    schedule = Schedule(tuple(tasks), "iterations", "made up")
    write_schedule(schedule, path)

    assert read_schedule(path).tasks == schedule.tasks


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 1000), st.integers(1, 30), st.integers(0, 60), st.integers(60, 500))
def test_random_phases_keep_their_bounds(seed, shortest, more, iterations):
    """Tasks of one worker, and the pauses between them, last as long as asked, except at the ends."""
    longest = shortest + more
    tasks = random_schedule([2], iterations, seed, shortest, longest).tasks

    assert all(task.worker == 2 and task.cpu == 1 for task in tasks)
    for task in tasks[1:]:
        assert shortest - 1e-6 <= task.end - task.start <= longest + 1e-6
    for before, after in itertools.pairwise(tasks):
        assert shortest - 1e-6 <= after.start - before.end <= longest + 1e-6
    assert not tasks or tasks[-1].start < iterations


def test_a_trace_becomes_tasks_of_the_same_demand(tmp_path):
    """Steps of about the same demand are one task, of 5 s a step; idle steps have one for their memory."""
    path = write_usage(tmp_path / "usage.csv.gz", [50, 52, 90], [0, 30, 30])
    tasks = trace_schedule(path, 2, seed=0).tasks

    assert [(t.worker, t.start, t.end, t.cpu) for t in tasks] == [
        (0, 0, 10, 0.5),
        (1, 0, 5, 0.0),
        (1, 5, 15, 0.3),
        (0, 10, 15, 0.9),
    ]
    assert all(t.memory == pytest.approx(0.2) for t in tasks)
