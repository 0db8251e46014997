"""Damage that `evenpace lab chaos` does to checkpoints and states, on real files and real processes."""

import contextlib
import random
import sqlite3
import sys

import pytest
import torch

from batchsize_manager.job.state import SavedMember
from batchsize_manager.storage.changes import Ended, Saved
from batchsize_manager.storage.state_file import StateFile
from batchsize_manager.storage.state_format import STATE_FILE
from idl.bounds import Bounds
from idl.synchronisation import Synchronisation
from lab.chaos.damage import copy_to_lose, flip_bit, flip_saved_bit, remove
from lab.chaos.fault_schedule import Fault
from lab.chaos.injections import Damage, StateDamage
from lab.chaos.supervisor import Supervisor
from ps import checkpoint as files
from ps.checkpoint import ShardCheckpoint, UnreadableError
from ps.checkpoint_store import CheckpointStore
from rpc.processes import Process
from tests.batchsize_manager.storage.test_state import begun, state
from tests.ps.tensors import plain_sgd, push

JOB = "job-0"


def save(folder, *versions):
    """Have a shard's folder hold checkpoints of these versions, and return their files."""
    store = CheckpointStore(folder)
    own = store.job(JOB)
    shard = plain_sgd()
    while shard.version <= max(versions):
        if shard.version in versions:
            own.save(ShardCheckpoint(JOB, 0, Synchronisation(), None, shard.snapshot())).result(120)
        push(shard, 0, 4, 4, torch.ones(4, dtype=torch.float64))
        shard.step()
    own.close()
    store.close()
    return sorted(folder.glob("*/*.checkpoint"))


def test_the_newest_checkpoint_can_be_lost_where_all_shards_have_an_earlier_one(tmp_path):
    """Not where there is none, nor where it may be gone soon, nor where what is left is damaged."""
    mine, other = tmp_path / "ps-0", tmp_path / "ps-1"
    *_, earlier, newest = save(mine, 1, 2, 3)
    theirs = save(other, 2, 3)
    found = copy_to_lose(mine, [other])
    assert (found.path, found.job, found.version) == (newest, JOB, 3)
    assert copy_to_lose(mine, [tmp_path / "none"]) is None
    assert copy_to_lose(mine, []).version == 3
    flip_bit(earlier, 0.5)
    assert copy_to_lose(mine, [other]) is None  # versions 1 and 3, and 2 and 3
    assert copy_to_lose(other, [mine]) is None
    assert copy_to_lose(mine, []).version == 3
    remove(newest)
    assert copy_to_lose(mine, []) is None  # a single one
    remove(theirs[1])
    assert copy_to_lose(other, [mine]) is None


@pytest.mark.parametrize("place", [0.0, 0.3, 0.999, 1.0])
def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path, place):
    """One bit differs; the file is no checkpoint any more, and one again when it is flipped back."""
    (path,) = save(tmp_path, 1)
    whole = path.read_bytes()
    said = flip_bit(path, place)
    damaged = path.read_bytes()
    assert sum((a ^ b).bit_count() for a, b in zip(whole, damaged, strict=True)) == 1
    assert path.name in said
    with pytest.raises(UnreadableError):
        files.read(path)
    flip_bit(path, place)
    assert path.read_bytes() == whole


STARTS = """
import sys, time
from pathlib import Path
from ps.checkpoint_store import CheckpointStore
store = CheckpointStore(Path(sys.argv[1]))
_, found = store.load("job-0").result()
print(f"job job-0: restored from its checkpoint of version {found.snapshot.version}", flush=True)
time.sleep(600)
"""


@pytest.fixture
def shard(tmp_path):
    """A supervised process that reads its newest checkpoint, as a shard does."""
    folder = tmp_path / "ps-0"
    save(folder, 1, 2, 3)
    process = Process("ps-0", [sys.executable, "-c", STARTS, str(folder)], tmp_path / "ps-0.log", "shard")
    supervisor = Supervisor({"ps-0": process}, random.Random(0), {"ps-0"})
    supervisor.poll()
    yield supervisor, process, folder
    supervisor.stop("shard")


FAULT = Fault(0, 0.0, "bit-flip", ("ps-0",), 0.0, 0.5)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("harm", "noticed"),
    [(lambda path: flip_bit(path, 0.5), "version {version} cannot be read"), (remove, None)],
)
def test_a_shard_goes_on_from_an_earlier_checkpoint(shard, wait_until, harm, noticed):
    """There is evidence once its next start has; one that did not need an earlier one gives none."""
    supervisor, process, folder = shard
    wait_until(lambda: "version 3" in process.said(), "its first start")
    first = process.pid
    damage = Damage(FAULT, supervisor, "ps-0", lambda: copy_to_lose(folder, []), harm, noticed)
    assert not damage.moot
    assert damage.fired() is None
    said = wait_until(lambda: supervisor.poll() or damage.fired(), "its next start")
    assert "3.checkpoint" in said
    assert said.endswith("then restored from version 2")
    assert ("version 3 cannot be read" in said) is (noticed is not None)
    assert process.pid != first
    assert supervisor.endings == []


def saved(folder):
    """Have a manager's folder hold a job of two members, and one that has ended; return its texts' bits."""
    folder.mkdir()
    file = StateFile(folder / STATE_FILE)
    members = [SavedMember(f"w{number}", f"i{number}", Bounds()) for number in range(2)]
    file.apply([begun("e", "earlier"), Ended("e", "it is done", 2.0), begun("r", JOB)])
    file.apply([Saved("r", state(*members))])
    file.close()
    return 8 * sum(len(text.encode()) for row in rows(folder) for text in row if isinstance(text, str))


def rows(folder, ended="IS NULL"):
    """Return what the state has of jobs that have not ended, and of their members; or of the others."""
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE)) as file:
        file.text_factory = lambda text: text.decode(errors="surrogateescape")
        jobs = file.execute(f"SELECT run, job, policy, state FROM runs WHERE ended {ended}").fetchall()
        of = f"run IN (SELECT id FROM runs WHERE ended {ended})"
        return jobs + file.execute(f"SELECT run, worker, state FROM members WHERE {of}").fetchall()


@pytest.mark.parametrize("place", [0.0, 0.3, 0.999, 1.0])
def test_a_bit_flips_in_what_is_saved_of_a_job_that_goes_on(tmp_path, place):
    """One bit, wherever it is, of the job's row or a member's; none of a job that has ended."""
    bits = saved(tmp_path / "m")
    before, ended = rows(tmp_path / "m"), rows(tmp_path / "m", "IS NOT NULL")
    damage = flip_saved_bit(tmp_path / "m", place)
    assert damage.job == JOB
    flat = [
        "".join(str(value) for row in found for value in row).encode(errors="surrogateescape")
        for found in (before, rows(tmp_path / "m"))
    ]
    assert sum((a ^ b).bit_count() for a, b in zip(*flat, strict=True)) == 1
    assert rows(tmp_path / "m", "IS NOT NULL") == ended
    table = "runs" if place * bits < 8 * sum(len(text.encode()) for text in before[0]) else "members"
    assert f"of {table} flipped" in damage.done


@pytest.fixture
def manager(tmp_path):
    """A supervised manager with a job in its state."""
    folder = tmp_path / "manager"
    saved(folder)
    line = (sys.executable, "-m", "evenpace", "manager", "--listen", "127.0.0.1:0", "--state", str(folder))
    process = Process("manager", line, tmp_path / "manager.log", "manager")
    supervisor = Supervisor({"manager": process}, random.Random(0), {"manager"})
    supervisor.poll()
    yield supervisor, process, folder
    supervisor.stop("manager")


def test_a_manager_mends_its_state(manager, wait_until):
    """There is evidence once its next start has written the damaged row again, and has the job."""
    supervisor, process, folder = manager
    wait_until(lambda: f"job {JOB} is restored, with 2 members" in process.said(), "its first start")
    first = process.pid
    fault = Fault(0, 0.0, "state-bit-flip", ("manager",), 0.0, 0.5)
    damage = StateDamage(fault, supervisor, "manager", lambda: flip_saved_bit(folder, 0.9))
    assert not damage.moot
    assert damage.fired() is None
    said = wait_until(lambda: supervisor.poll() or damage.fired(), "its next start")
    assert said.startswith("bit ")
    assert said.endswith(
        f"job {JOB}: the state of its member w1 was damaged, and is written again from its copy"
    )
    assert f"job {JOB} is restored, with 2 members" in process.said()
    assert process.pid != first
    assert supervisor.endings == []
