"""Training over real processes: services, and workers that run a script."""

import json
import os
import signal

import numpy as np
import psutil
import pytest

from evenpace.local.cluster import LocalCluster
from lab.observer import Observer
from tests.float64 import EPOCHS, SCRIPT, start_to_freeze, train_alone, wait_for_end
from tests.services import has_ended, is_frozen

PATIENT = ("--silence", "120")  # of a manager: who is only slow, or held up, keeps its part


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "shards"), [("sgd", 1), ("adam", 2)])
def test_uneven_workers_equal_one_process_on_the_big_batch(tmp_path, wait_until, optimizer, shards):
    """Uneven, changing batches over three workers give the parameters of one process, to rounding."""
    services = LocalCluster(tmp_path, workers=3, shards=shards, tolerance=0.0, manager_options=PATIENT)
    with services as cluster:
        for i, limit in enumerate(("64", "20", "7")):
            arguments = ["--optimizer", optimizer, "--out", str(tmp_path / f"{i}.npy")]
            arguments += ["--num-workers", str(i)]  # 0, 1 and 2 loading processes
            cluster.start_worker(f"w{i}", SCRIPT, arguments, options={"--max-batch-size": limit})
        wait_for_end(cluster, wait_until)
    alone = train_alone(optimizer)
    sizes = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(3)]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == ([64] * 7 + [52]) * EPOCHS
    assert max(sizes[2]) <= 7 < min(sizes[0])
    for i in range(3):
        assert np.abs(np.load(tmp_path / f"{i}.npy") - alone).max() < 1e-9


def leave_in_the_middle(tmp_path, wait_until, *, kill, **options):
    """Train with three workers, one of which freezes and may be killed; return what an observer saw."""
    with LocalCluster(tmp_path, workers=3, manager_options=PATIENT, **options) as cluster:
        workers = [
            cluster.start_worker(f"w{i}", SCRIPT, ["--epochs", "4", "--out", str(tmp_path / f"{i}.npy")])
            for i in (0, 2)
        ]
        frozen = start_to_freeze(cluster, "w1", "--epochs", "4").popen
        wait_until(lambda: is_frozen(frozen), "w1 to be at its point")
        if kill:
            frozen.kill()
        for process in workers:
            wait_until(lambda p=process: p.popen.poll() is not None, "the end of training")
            assert process.popen.returncode == 0, process.failure()
        observer = Observer(cluster.manager, cluster.shard_addresses)
        said = "w1 died" if kill else "w1 did not report"
        wait_until(
            lambda: observer.poll() and any(event.startswith(said) for event in observer.events),
            "the taking out",
        )
        observer.close()
    return observer


@pytest.mark.slow
def test_the_others_go_on_when_a_worker_is_killed(tmp_path, wait_until):
    """A killed worker is noticed; the next plans do without it and the others finish."""
    observer = leave_in_the_middle(tmp_path, wait_until, kill=True)
    check_two_trained(tmp_path, observer)
    whole = observer.iterations[-2]
    assert whole.batch_sizes.sum() == whole.total == 64


def check_two_trained(tmp_path, observer):
    """Check that all iterations were done, the last by two workers with the same parameters."""
    assert len(observer.iterations) == 4 * 8
    assert set(observer.iterations[-1].workers) == {"w0", "w2"}
    assert np.array_equal(np.load(tmp_path / "0.npy"), np.load(tmp_path / "2.npy"))


@pytest.mark.slow
def test_a_worker_may_join_a_running_job(tmp_path, wait_until):
    """A late worker starts with the current parameters, takes its part, and ends with the others."""
    with LocalCluster(tmp_path, workers=1, manager_options=PATIENT) as cluster:
        arguments = ["--epochs", "4", "--out"]
        first = start_to_freeze(cluster, "w0", *arguments, str(tmp_path / "0.npy")).popen
        wait_until(lambda: is_frozen(first), "w0 to be at its point")
        cluster.start_worker("w1", SCRIPT, [*arguments, str(tmp_path / "1.npy")])
        observer = Observer(cluster.manager, cluster.shard_addresses)
        wait_until(lambda: observer.poll() and "w1" in observer.members, "the late worker's joining")
        first.send_signal(signal.SIGCONT)
        wait_for_end(cluster, wait_until)
        observer.poll()
        observer.close()
    both = [r for r in observer.iterations if len(r.workers) == 2]
    assert both
    assert all(r.batch_sizes.sum() == r.total for r in both)
    assert np.array_equal(np.load(tmp_path / "0.npy"), np.load(tmp_path / "1.npy"))


@pytest.mark.slow
def test_no_process_outlives_the_one_that_started_it(tmp_path, wait_until):
    """Services and workers end with the process that started them, even if that is killed."""
    code = (
        "import sys, time; from pathlib import Path; from evenpace.local.cluster import LocalCluster\n"
        f"cluster = LocalCluster(Path({str(tmp_path)!r}), workers=2).__enter__()\n"
        f"cluster.start_worker('w0', Path({str(SCRIPT)!r}))\n"
        "print('up', flush=True); time.sleep(600)"
    )
    with psutil.Popen([os.sys.executable, "-c", code], stdout=-1) as starter:
        assert starter.stdout.readline() == b"up\n"
        children = starter.children(recursive=True)
        assert len(children) >= 3
        starter.kill()
    wait_until(lambda: all(map(has_ended, children)), "the children's end")
