"""A disk that stalls for one job delays no other job, and its own only where it must."""

import contextlib
import threading

import numpy as np
import pytest
import torch

import idl
from idl.errors import RewoundError
from idl.layout import Group, Layout
from idl.synchronisation import Synchronisation
from ps import checkpoint as files
from ps import checkpoint_store
from ps.checkpoint import ShardCheckpoint
from ps.shard import Shard
from rpc.client import Client
from tests.ps.attempts import AttemptWorker
from tests.services import ShardWorker, serving, shard_service

_ps = idl.parameter_server


@contextlib.contextmanager
def held_up(monkeypatch, where, name, job):
    """Block a function when its first argument names a job; yield an event that is set once it is called."""
    called, go, function = threading.Event(), threading.Event(), getattr(where, name)

    def held(*arguments, **options):
        if job in str(arguments[0]):
            called.set()
            assert go.wait(240)
        return function(*arguments, **options)

    monkeypatch.setattr(where, name, held)
    try:
        yield called
    finally:
        go.set()


def checkpoints(folder, job):
    """Return the versions of the checkpoint files."""
    return sorted(int(path.stem) for path in folder.glob(f"{job}*/*.checkpoint"))


def version_there(worker):
    """Return the shard's version, asked over another connection."""
    with contextlib.closing(Client(_ps.ParameterServer, worker.address, "shard", call_timeout=120)) as client:
        into = np.empty(worker.elements, dtype=np.float32)
        return client.call("pull", _ps.PullRequest(worker.identity, -1), into=into.data.cast("B")).version


def test_a_checkpoint_that_is_not_written_holds_up_nobody(tmp_path, monkeypatch, wait_until):
    """Other jobs train and write theirs; the job itself waits at its next checkpoint only."""
    with serving(shard_service(state=tmp_path, checkpoint_every=3)) as address:
        slow, other = (ShardWorker(address, name=f"{name}/run") for name in ("slow", "other"))
        wait_until(lambda: checkpoints(tmp_path, "slow") == [0], "the first checkpoint")
        with held_up(monkeypatch, files, "write", "slow") as called:
            while slow.version < 6:
                slow.iterate()
            assert called.wait(240)
            slow.push()
            while other.version < 12:
                other.iterate()
            wait_until(lambda: checkpoints(tmp_path, "other") == [6, 9, 12], "the other job's")
            assert checkpoints(tmp_path, "slow") == [0]
            assert version_there(slow) == 6
        slow.stepped()
        slow.check()
        slow.iterate()
        wait_until(lambda: checkpoints(tmp_path, "slow") == [0, 3, 6], "its checkpoints")


@pytest.mark.parametrize("version", [0, 2])
def test_a_step_waits_until_the_parameters_before_it_are_copied(tmp_path, monkeypatch, wait_until, version):
    """A checkpoint has one version's parameters: a step waits until they are copied."""
    service = shard_service(state=tmp_path, checkpoint_every=2)
    with serving(service) as address:
        if version:
            worker = ShardWorker(address, name="slow/run")
            worker.iterate()
        with held_up(monkeypatch, checkpoint_store, "replace", "slow") as called:
            if version:
                worker.iterate()
            else:
                worker = ShardWorker(address, name="slow/run")
            assert called.wait(240)
            worker.push()
            worker.stepped()
            pulling = threading.Thread(target=worker.check, daemon=True)
            pulling.start()
            wait_until(lambda: service.jobs[0].waiting, "the pull")
            assert version_there(worker) == version
        pulling.join(240)
        assert not pulling.is_alive()
        wait_until(lambda: version in checkpoints(tmp_path, "slow"), "the checkpoint")
    (path,) = tmp_path.glob(f"slow*/*{version}.checkpoint")
    expected = -sum((np.arange(1000) % 7 + v for v in range(version)), np.zeros(1000))
    np.testing.assert_array_equal(files.read(path).snapshot.parameters.numpy(), expected)


def test_going_back_again_removes_what_came_later(tmp_path, monkeypatch, wait_until):
    """An attempt that ends while its checkpoint is read leaves the same version to a later attempt."""
    with serving(shard_service(state=tmp_path, checkpoint_every=2)) as address:
        worker = AttemptWorker(address, name="slow/run")
        for _ in range(3):
            worker.iterate()
        wait_until(lambda: checkpoints(tmp_path, "slow") == [0, 2], "the checkpoints")

        def give_up():
            with (
                contextlib.closing(Client(_ps.ParameterServer, address, "shard", call_timeout=240)) as client,
                pytest.raises(RewoundError),
            ):
                client.call("rewind", _ps.RewindRequest(worker.identity, 1, 2))

        with held_up(monkeypatch, files, "read", "slow") as called:
            worker.fence(1)
            thread = threading.Thread(target=give_up, daemon=True)
            thread.start()
            assert called.wait(240)
            worker.fence(2)
            thread.join(240)
            assert not thread.is_alive()
        worker.rewind(2, 3)
        worker.iterate()
        wait_until(lambda: checkpoints(tmp_path, "slow") == [0, 2, 4], "the checkpoint")
        worker.fence(3)
        worker.rewind(3, 2)
        assert checkpoints(tmp_path, "slow") == [0, 2]


def test_each_job_has_a_thread_for_its_files(tmp_path, monkeypatch):
    """A thread of its own writes and reads a job's checkpoints, not the one that asks nor another job's."""
    layout = Layout("float64", "sgd", (Group(3, {"lr": 0.1}),))
    by = {"slow": set(), "other": set()}  # threads

    def noted(function):
        def note(path, *arguments):
            by[path.parent.name.partition("_")[0]].add(threading.current_thread())
            return function(path, *arguments)

        return note

    for name in ("write", "read"):
        monkeypatch.setattr(files, name, noted(getattr(files, name)))
    with contextlib.closing(checkpoint_store.CheckpointStore(tmp_path)) as store:
        jobs = {name: store.job(f"{name}/run") for name in by}
        for name, job in jobs.items():
            shard = Shard(layout)
            shard.initialise(torch.zeros(3, dtype=torch.float64), 0)
            job.save(ShardCheckpoint(f"{name}/run", 0, Synchronisation(), None, shard.snapshot()))
            assert job.go_back(0).result(240).snapshot.version == 0
            job.close()
    assert [len(threads) for threads in by.values()] == [1, 1]
    assert len({*by["slow"], *by["other"], threading.current_thread()}) == 3
