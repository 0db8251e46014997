"""Command lines of the lab that make no sense: each is an error of one line, before anything starts."""

import shlex

import pytest

from tests.evenpace.commands import invoke

pytestmark = pytest.mark.usefixtures("generated_once")

CONTENTION = "lab experiment contention --workload svm --schemes bsp --shares 0.3,0.3 --out out "
NORMALISED = "lab experiment noise --draws 2 --train digits --batch-norm "
FIG6, FIG8 = (f"lab experiment {name} digits --out out " for name in ("fig6 --workloads", "fig8 --workload"))
PREDICTORS = "lab bench predictors "
FILES = {
    "machines.csv": "vm,step,cpu_percent,mem_percent\na,0,50,50\na,1,50,50\n",
    "trace.csv": "worker,iteration,speed,cpu,memory\nw,0,1,0,0\nw,1,1,3,0\n",
    "notes.txt": "some notes\n",
    "tasks.csv": "worker,start,end,cpu,memory\n7,0,1,1,0\n",
    "train.py": "",
}


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("demo --out run --shares 0.4,0.1 --data mnist:/nowhere", 1, "/nowhere"),
        (
            "profile --smallest 9 --largest 8 --out x.json train.py",
            1,
            "smallest 9: must be at most the largest, 8",
        ),
        ("lab trace contention --workers 0 --out out.csv", 2, "'--workers': 0 is not in the range x>=1"),
        ("lab bench groups --workers 5", 1, "workers 5: must divide the batch, of 48 samples"),
        ("lab bench shards --shards 0", 1, "shards '0'"),
        ("lab bench balance --curves notes.txt", 1, "notes.txt"),
        ("lab bench balance --micro-batch 300 --total 600", 1, "at most 256 samples"),
        (PREDICTORS + "--trace trace.csv", 1, "trace.csv, line 3: cpu '3': must be a number from 0 to 1"),
        (CONTENTION + "--schemes best", 1, "no scheme 'best'"),
        (CONTENTION + "--schedule tasks.csv", 1, "a task for worker 7, but there are 2 workers"),
        ("lab experiment fig6 --workloads digits,best --out out", 1, "no workload 'best'"),
        ("lab experiment fig6 --report notes.txt --out out", 1, "notes.txt: not JSON"),
        (FIG8 + "--cut-worker 4", 1, "cut of worker 4: there are 4 workers"),
        (NORMALISED + "--batches 8,1", 1, "batches (8, 1): give at least two, of 2 samples or more"),
        (NORMALISED + "--train cifar10:x", 1, "batch-norm: only for digits and MNIST; CifarNet has none"),
        ("lab experiment paper --out out --only fig5", 1, "no experiment 'fig5'; there are fig6, fig8"),
        ("lab experiment batch-sizes --data notes.txt", 1, "notes.txt, line 1: no column 'benchmark'"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(tmp_path, monkeypatch, line, status, said):
    """The line names what was given and what is allowed, without a traceback, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    result = invoke(*shlex.split(line), columns=200)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == status
    assert said in " ".join(result.output.split())
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert found - ({"out"} if " fig" in line else set()) == set(FILES)
