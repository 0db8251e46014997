"""Schedules of contention: who is disturbed when."""

import gzip
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.experiments.contention_schedule import (
    Disturbance,
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

    assert read_schedule(path, "iterations").tasks == schedule.tasks


@settings(deadline=None)
@given(st.lists(TASKS, max_size=20), st.floats(0, 2e6))
def test_active_tasks_are_those_that_have_begun_and_not_ended(tasks, now):
    """A task runs from its start up to, not including, its end."""
    active = Schedule(tuple(tasks), "seconds", "made up").active(now)

    assert active == {task for task in tasks if task.start <= now and now < task.end}


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


def test_the_same_seed_gives_each_worker_the_same():
    """A worker's disturbance does not depend on who else is disturbed."""
    together, alone = random_schedule([0, 1, 2], 300, 7), random_schedule([1], 300, 7)

    assert [task for task in together.tasks if task.worker == 1] == list(alone.tasks)
    assert random_schedule([1], 300, 8).tasks != alone.tasks


def test_who_is_not_there_is_not_disturbed():
    """The schedule of the first two workers has no task of the third."""
    tasks = (Task(0, 0, 1), Task(1, 0, 1), Task(2, 0, 1))

    assert Schedule(tasks, "seconds", "made up").of_first(2).tasks == tasks[:2]


def test_a_trace_becomes_tasks_of_the_same_demand(tmp_path):
    """Steps of about the same demand are one task, idle steps have none but for their memory."""
    path = write_usage(tmp_path / "usage.csv.gz", [50, 52, 90], [0, 30, 30])
    tasks = trace_schedule(path, 2, 10, seed=0, machines=["0", "1"]).tasks

    assert [(t.worker, t.start, t.end, t.cpu) for t in tasks] == [
        (0, 0, 20, 0.5),
        (1, 0, 10, 0.0),
        (1, 10, 30, 0.3),
        (0, 20, 30, 0.9),
    ]
    assert all(t.memory == pytest.approx(0.2) for t in tasks)


def test_machines_are_drawn_by_the_seed(tmp_path):
    """The same seed draws the same machines, each at most once; too few machines are refused."""
    path = write_usage(tmp_path / "usage.csv.gz", *([10 * i, 5] for i in range(1, 9)))
    first, again = (trace_schedule(path, 4, 10, seed=3) for _ in range(2))

    assert first == again
    assert len({task.cpu for task in first.tasks if task.start == 0}) == 4
    with pytest.raises(ValueError, match="8 machines, but 9 workers"):
        trace_schedule(path, 9, 10, seed=3)
    with pytest.raises(ValueError, match="there is no machine 'x'"):
        trace_schedule(path, 1, 10, seed=3, machines=["x"])
    with pytest.raises(ValueError, match="one for each of 2 workers"):
        trace_schedule(path, 2, 10, seed=3, machines=["1"])


def test_a_disturbance_makes_the_schedule_that_it_names(tmp_path):
    """From a file, from machines' usage, or at random, of the workers that are named."""
    usage = write_usage(tmp_path / "usage.csv.gz", [50, 52, 90], [0, 30, 30])
    path = tmp_path / "schedule.csv"
    write_schedule(Schedule((Task(1, 0, 5),), "seconds", "made up"), path)

    assert Disturbance(file=path, unit="seconds").schedule(2, 100, 7) == read_schedule(path, "seconds")
    used = Disturbance(usage=usage, step_seconds=10, machines=("1", "0")).schedule(2, 100, 7)
    assert used == trace_schedule(usage, 2, 10, 7, ["1", "0"])
    assert Disturbance(usage=usage).schedule(2, 100, 7) == trace_schedule(usage, 2, 5, 7)
    assert Disturbance(phases=(3, 9)).schedule(2, 100, 7) == random_schedule(range(2), 100, 7, 3, 9)
    assert Disturbance(contended=(1,)).schedule(2, 100, 7) == random_schedule([1], 100, 7)
    with pytest.raises(ValueError, match="a task for worker 1, but there are 1 workers"):
        Disturbance(file=path).schedule(1, 100, 7)
