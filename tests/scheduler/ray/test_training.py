"""What a training function reports, and the checkpoints that it finds again."""

import multiprocessing
import pickle
import subprocess
import sys
from functools import partial

import pytest

from evenpace.ray import Checkpoint, get_checkpoint, report
from idl.errors import InvalidRequestError
from scheduler.ray.training import (
    FOLDER_VARIABLE,
    LOOP_FILE,
    SCRIPT,
    SCRIPT_FILE,
    WORKER_VARIABLE,
    read_reports,
)

WORKERS, TIMES, OLD = 4, 8, 3000


@pytest.fixture
def job(tmp_path, monkeypatch):
    """The folder of a job of which this process is worker w0."""
    folder = tmp_path / "job"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    monkeypatch.setenv(WORKER_VARIABLE, "w0")
    return folder


def files(folder, text):
    """A folder with a file of this text, as a checkpoint."""
    folder.mkdir(parents=True)
    (folder / "state").write_text(text)
    return Checkpoint.from_directory(folder)


def test_reports_are_read_in_the_order_in_which_they_were_made(job, monkeypatch):
    """Each has its worker, its time, its metrics, and the checkpoint that was given with it, if any."""
    report({"loss": 2.5, "names": ["a"]})
    monkeypatch.setenv(WORKER_VARIABLE, "w1")
    report({"loss": 1.5})
    monkeypatch.setenv(WORKER_VARIABLE, "w0")
    report({"loss": float("inf")})
    reports = read_reports(job)
    assert [one["worker"] for one in reports] == ["w0", "w1", "w0"]
    assert [one["metrics"]["loss"] for one in reports] == [2.5, 1.5, float("inf")]
    assert [one["time"] for one in reports] == sorted(one["time"] for one in reports)
    assert {one["checkpoint"] for one in reports} == {None}


def test_the_last_checkpoint_is_found_though_its_folder_was_removed(job, tmp_path):
    """A checkpoint is kept in the job's folder, with all that it has; the next one is found in its place."""
    for text in ("first", "second"):
        given = files(tmp_path / text / "deep", text)
        report({}, given)
        (given.path / "state").unlink()
        given.path.rmdir()
        found = get_checkpoint()
        with found.as_directory() as folder:
            assert (job / "checkpoints") in (found.path, *found.path.parents)
            assert folder == str(found.path)
        assert (found.path / "state").read_text() == text
        assert read_reports(job)[-1]["checkpoint"] == str(found.path)


def report_often(number, *, folder, barrier):
    """Report checkpoints, all workers at the same time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER_VARIABLE, str(folder / "job"))
        patch.setenv(WORKER_VARIABLE, f"w{number}")
        for time in range(TIMES):
            given = files(folder / f"given-{number}-{time}", f"{number} {time}")
            barrier.wait(120)
            report({"time": time}, given)


def test_no_checkpoint_is_lost_where_several_workers_report_at_once(tmp_path):
    """Checkpoints that several processes keep at the same moment are all there, each under its own number."""
    # To look for the last of many takes so long that others look, too, meanwhile.
    for number in range(OLD):
        (tmp_path / "job" / "checkpoints" / f"checkpoint_{number:06d}").mkdir(parents=True)
    context = multiprocessing.get_context("fork")
    task = partial(report_often, folder=tmp_path, barrier=context.Barrier(WORKERS))
    workers = [context.Process(target=task, args=(number,)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(240)
    assert [worker.exitcode for worker in workers] == [0] * WORKERS
    kept = sorted((tmp_path / "job" / "checkpoints").iterdir())[OLD:]
    assert [folder.name for folder in kept] == [f"checkpoint_{OLD + n:06d}" for n in range(WORKERS * TIMES)]
    wanted = {f"{number} {time}" for number in range(WORKERS) for time in range(TIMES)}
    assert {(folder / "state").read_text() for folder in kept} == wanted
    reported = {one["checkpoint"] for one in read_reports(tmp_path / "job")}
    assert reported == set(map(str, kept))


def test_a_report_that_was_cut_off_is_left_out(job):
    """A worker that was killed while it wrote loses that report, and none before it or after."""
    report({"step": 1})
    report({"step": 2})
    file = job / "reports" / "w0.jsonl"
    file.write_bytes(file.read_bytes()[:-10])
    assert [one["metrics"]["step"] for one in read_reports(job)] == [1]
    report({"step": 3})
    report({"step": 4})
    assert [one["metrics"]["step"] for one in read_reports(job)] == [1, 3, 4]


def test_metrics_that_json_cannot_hold_are_refused_and_nothing_is_kept(job, tmp_path):
    """The error shows the metrics, and neither a report nor the checkpoint is left."""
    loop = {}
    loop["self"] = loop
    for value in (object(), {1, 2}, b"bytes", loop):
        with pytest.raises(InvalidRequestError, match=r"metrics \{.loss.: "):
            report({"loss": value}, Checkpoint(tmp_path))
    assert read_reports(job) == []
    assert get_checkpoint() is None


@pytest.mark.parametrize(
    ("loop", "config", "printed"),
    [
        (partial(print, "called", end=""), {"lr": 0.5}, "called{'lr': 0.5}"),
        (partial(print, "called", end=""), None, "called{}"),
        (globals, None, ""),
    ],
)
def test_a_workers_script_calls_the_training_function_beside_it(tmp_path, loop, config, printed):
    """It is given its argument, an empty one where there is none, and nothing where it takes nothing."""
    (tmp_path / SCRIPT_FILE).write_text(SCRIPT)
    (tmp_path / LOOP_FILE).write_bytes(pickle.dumps((loop, config)))
    done = subprocess.run(
        [sys.executable, str(tmp_path / SCRIPT_FILE)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.replace(" ", "")) == (0, printed.replace(" ", "")), done.stderr
