"""Shards that are killed and restarted as processes: they return, and agree on a version."""

import contextlib
import json
import signal

import numpy as np
import pytest

import idl
from idl.errors import EvenpaceError, RewoundError
from rpc.client import Client
from tests.ps.attempts import AttemptWorker
from tests.services import ends_with, open_request, serving, shard_service, signalled_process

_ps = idl.parameter_server


@contextlib.contextmanager
def processes(tmp_path):
    """Return a function that starts a shard with a folder, and returns its process and address."""
    with contextlib.ExitStack() as stack:

        def start(name):
            arguments = ("--state", str(tmp_path / name), "--checkpoint-every", "5")
            arguments += ("--ledger", str(tmp_path / name / "l"))
            return stack.enter_context(signalled_process("ps", *arguments))

        yield start


@pytest.fixture
def shards(tmp_path):
    """Such a function, of real processes."""
    with processes(tmp_path) as start:
        yield start


@contextlib.contextmanager
def here(folder, every=5):
    """Serve a shard with such a folder in this process."""
    with serving(shard_service(state=folder, checkpoint_every=every, ledger=folder / "l")) as address:
        yield address


class Resumed(AttemptWorker):
    """A worker that continues at a restarted shard; its gradients depend on the version alone."""

    def __init__(self, address, old):
        super().__init__(address, old.elements, old.identity.job, initialise=False)
        self.opened = self.open()
        self.at(self.opened.version)

    def at(self, version):
        """Expect the parameters of a version."""
        self.version, self.expected = 0, np.zeros(self.elements, dtype=np.float32)
        for _ in range(version):
            self.stepped()


def iterate(worker, times):
    """Take some steps, each checked to the last bit."""
    for _ in range(times):
        worker.iterate()


def ledger(folder):
    """Read the ledger of the only job."""
    (path,) = folder.glob("l/*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_shard_that_was_started_again_says_so_until_the_job_has_gone_back(tmp_path, wait_until):
    """Who opens the job there is told: what others have pushed since the checkpoint is lost."""
    with here(tmp_path) as address:
        worker = AttemptWorker(address)
        assert not worker.open().restored
        wait_until(lambda: list(tmp_path.glob("*/*0.checkpoint")), "the checkpoint")
        worker.close()
    with here(tmp_path) as address:
        again = Resumed(address, worker)
        assert again.opened.restored
        again.fence(1)
        again.rewind(1, 0)
        assert not again.open().restored
        again.close()


def test_steps_that_count_no_more_do_not_come_back(tmp_path):
    """The job goes on from what a shard could read when it was started, even if it can read more later."""
    with here(tmp_path) as address:
        worker = AttemptWorker(address)
        iterate(worker, 6)
        worker.close()
    later = {path: path.read_bytes() for path in tmp_path.glob("*/*.checkpoint") if int(path.stem)}
    assert sorted(int(path.stem) for path in later) == [5, 6]
    for path, whole in later.items():
        path.write_bytes(whole[:-1])
    with here(tmp_path) as address:
        again = Resumed(address, worker)
        assert again.version == 0
        for path, whole in later.items():
            path.write_bytes(whole)
        again.fence(1)
        again.rewind(1, 0)
        again.close()
    with here(tmp_path) as address:
        last = Resumed(address, worker)
        assert last.version == 0
        last.close()


def test_a_killed_shard_goes_on_from_its_checkpoint(shards, tmp_path, wait_until):
    """After SIGKILL a shard has its newest checkpoint, and refuses workers of the former process."""
    popen, address = shards("a")
    worker = AttemptWorker(address)
    iterate(worker, 13)
    wait_until(lambda: list(tmp_path.glob("a/*/*10.checkpoint")), "the checkpoint")
    ends_with(popen, signal.SIGKILL)
    worker.close()

    popen, address = shards("a")
    client = Client(_ps.ParameterServer, address, "shard", call_timeout=30)
    with pytest.raises(RewoundError, match="started again"):  # nobody has opened the job there
        client.call("push", worker.push_request(), bulk=worker.gradient().data.cast("B"))
    reply = client.call("fence", _ps.FenceRequest(worker.identity, 1))
    assert (reply.initialised, reply.version, reply.checkpoints) == (True, 10, [0, 5, 10])
    client.close()
    again = Resumed(address, worker)
    assert (again.opened.initialised, again.version, again.attempt) == (True, 10, 1)
    assert again.instance != worker.instance
    again.rewind(1, 5)
    again.at(5)
    again.check()
    iterate(again, 3)
    assert ends_with(popen, signal.SIGTERM) == 0
    again.close()

    # A shard that ends as it should loses nothing.
    with here(tmp_path / "a") as address:
        last = Resumed(address, again)
        assert (last.version, last.attempt) == (8, 1)
        iterate(last, 1)
        last.close()
    said = [(key, r[key]) for r in ledger(tmp_path / "a") for key in r if key not in ("attempt", "slices")]
    assert said == [
        ("initialised", 0),
        *(("iteration", i) for i in range(len(said) - 8)),
        *(("restored", 10), ("rewound", 5), ("iteration", 5), ("iteration", 6), ("iteration", 7)),
        *(("restored", 8), ("iteration", 8)),
    ]
    assert 10 <= len(said) - 8 <= 13  # a kill may take the last lines with it, but none before a checkpoint
    assert ledger(tmp_path / "a")[-1]["slices"] == [[0, 8, "good"]]


@pytest.mark.simulated
def test_a_shard_that_ends_keeps_a_gradient_that_waits_for_other_shards(tmp_path):
    """Both versions are on the disk: that before its step, and that after it, which the others may have."""
    with processes(tmp_path) as shards:
        popen, address = shards("a")
        worker = AttemptWorker(address, name="j/r", shared=True)
        worker.push()
        ends_with(popen, signal.SIGTERM)
        worker.close()
        worker.stepped()
        resumed = Resumed(shards("a")[1], worker)
        assert resumed.fence(1).checkpoints == [0, 1]
        resumed.rewind(1, 1)
        resumed.at(1)
        resumed.check()
        resumed.close()


def test_other_modes_have_no_checkpoints(tmp_path, caplog):
    """In the other modes there are no checkpoints, which the log says once."""
    with serving(shard_service(state=tmp_path, checkpoint_every=1)) as address:
        client = Client(_ps.ParameterServer, address, "shard", call_timeout=30)
        identity = idl.common.Identity("j/r", "w", "i")
        asked = open_request(identity, 3, synchronisation=idl.common.Synchronisation("asp"))
        for _ in range(2):
            client.call("open", asked)
        zeros = np.zeros(3, dtype=np.float32).data.cast("B")
        client.call("initialise", _ps.InitialiseRequest(identity, 0), bulk=zeros)
        assignment = idl.common.Assignment(0, 0, 0, 1, 1)
        reply = client.call("push", _ps.PushRequest(identity, assignment), bulk=zeros)
        assert (reply.checkpoints, reply.checkpointed) == ([], None)
        assert client.call("fence", _ps.FenceRequest(identity, 1)).checkpoints == []
        with pytest.raises(RewoundError, match=r"version 7: there is \d, and no checkpoint"):
            client.call("rewind", _ps.RewindRequest(identity, 1, 7))
        client.close()
    assert caplog.text.count("no checkpoints, there are none with asp") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_job_that_had_to_make_room_comes_back(tmp_path, wait_until):
    """A job that was dropped from memory is restored when a worker asks for it."""
    service = shard_service(state=tmp_path, memory_bytes=12000)

    def all_have_left():
        return all(job.left_at is not None for job in service.jobs)

    with serving(service) as address:
        worker = AttemptWorker(address, 1000)
        iterate(worker, 3)
        worker.close()
        wait_until(all_have_left, "its leaving")
        other = AttemptWorker(address, 900)
        other.iterate()
        with pytest.raises(EvenpaceError, match="may hold 12000"):
            Resumed(address, worker)
        other.close()
        wait_until(all_have_left, "its leaving")
        again = Resumed(address, worker)
        assert again.version == 3
        iterate(again, 2)
        again.close()


def test_of_too_many_jobs_those_without_workers_make_room(wait_until):
    """While there are none, a new one is refused, and the others go on."""
    service = shard_service(jobs=2)
    with serving(service) as address:
        workers = [AttemptWorker(address, 3, name=f"job-{number}/run") for number in range(2)]
        with pytest.raises(EvenpaceError, match="may hold 2 jobs, and has as many with workers"):
            AttemptWorker(address, 3, name="late/run")
        iterate(workers[0], 3)
        workers[1].close()
        wait_until(lambda: any(job.left_at is not None for job in service.jobs), "its leaving")
        late = AttemptWorker(address, 3, name="late/run")
        iterate(late, 2)
        assert {job.name for job in service.jobs} == {"job-0/run", "late/run"}
        for worker in (workers[0], late):
            worker.close()


def test_what_is_not_trained_outlives_the_shard(tmp_path):
    """The first worker's bytes beside the parameters come back with the checkpoint; another's are dropped."""
    identity = idl.common.Identity("job/run", "w", "1")

    def set_all(client, beside):
        request = _ps.InitialiseRequest(identity, 0, slot="untrained")
        client.call("initialise", request, bulk=memoryview(beside))
        client.call("initialise", _ps.InitialiseRequest(identity, 0), bulk=memoryview(bytes(12)))

    def got(client):
        client.call("open", open_request(identity, 3))
        length = client.call("state", _ps.StateRequest(identity)).untrained
        request = _ps.PullRequest(identity, -1, slot="untrained")
        client.call("pull", request, into=(into := memoryview(bytearray(length))))
        return bytes(into)

    for _ in range(2):
        with (
            here(tmp_path) as address,
            contextlib.closing(Client(_ps.ParameterServer, address, "shard", call_timeout=30)) as client,
        ):
            if not client.call("open", open_request(identity, 3)).initialised:
                set_all(client, b"some bytes")
            set_all(client, b"others")
            assert got(client) == b"some bytes"
