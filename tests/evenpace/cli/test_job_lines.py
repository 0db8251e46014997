"""The line of how far a job on a Ray cluster has come."""

import pytest

from evenpace.cli.job_lines import JobLines, progress
from scheduler.ray.controller import News, Progress
from scheduler.ray.supervisor import Finish

RUNNING = Progress("running", 1234, 2500)


def news(lines=(), waits=None, running=0, failures=0, progress=None, finish=None):
    """News of a job."""
    return News("start", lines, len(lines), waits or {}, running, failures, None, progress, finish)


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (news(), "0 workers"),
        (news(running=2, failures=1), "2 workers; 1 failure"),
        (news(progress=RUNNING, running=2), "running, iteration 1,234, batches of 2,500; 2 workers"),
        (
            news(waits={"w0": "ended with status 1", "w1": "is about to start"}, running=1, failures=1),
            "1 worker; 1 failure; waiting: w0 ended with status 1; w1 is about to start",
        ),
        (
            news(waits={f"w{n}": "needs 1 CPU, and all are taken" for n in range(5)}, running=3),
            "3 workers; waiting: w0 needs 1 CPU, and all are taken; w1 needs 1 CPU, and all are taken, "
            "and 3 more",
        ),
    ],
)
def test_the_progress_of_a_job_is_one_line(one, text):
    """It says how far the job is, how many workers run, what failed, and for whom it waits and why."""
    assert progress(one) == text


def test_lines_of_processes_and_of_the_job_go_apart(capsys):
    """What processes print is the output, and nothing else: neither the job's lines nor Ray's prints.

    The same progress is not said again at once, where the output is no terminal; the end needs none.
    """
    with JobLines() as lines:
        lines.show(news([(0.0, "w0", "loss 0.5 [red]"), (1.0, "job", "w1 is lost")], running=1))
        print("fifty lines about a node")  # noqa: T201
        lines.show(news(running=1))
        lines.note("the job goes on")
        lines.show(news(running=0, finish=Finish("done")))
    print("afterwards")  # noqa: T201
    captured = capsys.readouterr()
    assert captured.out == "w0 | loss 0.5 [red]\nafterwards\n"
    assert captured.err.splitlines() == ["job | w1 is lost", "1 worker", "the job goes on"]
