"""Damage that `evenpace lab chaos` does to checkpoints, on real files and real processes."""

import random
import sys

import pytest
import torch

from evenpace.lab.chaos.damage import copy_to_lose, flip_bit, remove
from evenpace.lab.chaos.fault_schedule import Fault
from evenpace.lab.chaos.injections import Damage
from evenpace.lab.chaos.supervisor import Supervisor
from idl.synchronisation import Synchronisation
from ps import checkpoint as files
from ps.checkpoint import ShardCheckpoint, UnreadableError
from ps.checkpoint_store import CheckpointStore
from rpc.processes import Process
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


def test_what_another_shard_is_about_to_remove_does_not_count(tmp_path):
    """A shard keeps its three newest checkpoints: the oldest of them goes with its next write."""
    mine, other = tmp_path / "ps-0", tmp_path / "ps-1"
    save(mine, 1, 4)
    save(other, 1, 2)
    assert copy_to_lose(mine, [other]).version == 4
    third = tmp_path / "ps-2"
    save(third, 1, 2, 3)
    assert copy_to_lose(mine, [other, third]) is None


@pytest.mark.parametrize("place", [0.0, 0.01, 0.3, 0.8, 0.999, 1.0])
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


def test_a_damage_that_changes_nothing_is_none(shard, wait_until):
    """A shard that restores the version that was to be lost is no evidence."""
    supervisor, process, folder = shard
    find = lambda: copy_to_lose(folder, [])  # noqa: E731
    damage = Damage(FAULT, supervisor, "ps-0", find, lambda path: "nothing", None)
    wait_until(lambda: supervisor.poll() or (process.starts == 2 and "restored" in process.said()), "a start")
    assert damage.fired() is None


def test_a_shard_with_no_checkpoint_to_lose_goes_on(shard):
    """It is not killed, and is looked at again."""
    supervisor, process, folder = shard
    found = [None, copy_to_lose(folder, [])]
    damage = Damage(FAULT, supervisor, "ps-0", lambda: found.pop(0), remove, None)
    assert damage.moot
    assert process in supervisor.staying("shard")
    assert damage.fired() is None
    assert not damage.moot
    assert supervisor.staying("shard") == []
