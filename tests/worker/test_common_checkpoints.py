"""Shards always have a checkpoint of one version in common, whose job goes on from it."""

import contextlib
import errno
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.layout import Group, Layout
from idl.synchronisation import Synchronisation
from ps import checkpoint as files
from ps.checkpoint import ShardCheckpoint
from ps.checkpoint_store import CheckpointStore
from ps.shard import Shard
from tests.services import RestartableService
from tests.worker.least_squares import Worker
from tests.worker.test_recovery import ITERATIONS, assert_trained, in_process_manager, once
from worker.shard_clients import common_checkpoint

LAYOUT = Layout("float64", "sgd", (Group(1, {"lr": 0.1}),))


@pytest.mark.simulated
@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_checkpoint_of_a_live_shard_costs_those_after_an_earlier_one(tmp_path, damage, wait_until):
    """Another shard comes back with that version: all go on from the one before."""

    def spoil():
        (newest,) = wait_until(lambda: [*tmp_path.glob("ps-0/*/*15.checkpoint")], "the checkpoint")
        wait_until(lambda: [*tmp_path.glob("ps-1/*/*15.checkpoint")], "that of the other")
        if damage == "gone":
            newest.unlink()
        else:
            content = bytearray(newest.read_bytes())
            content[-10] ^= 1
            newest.write_bytes(content)
        shards[1].kill()
        shards[1].start()

    with in_process_manager(2) as manager, contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(
                RestartableService("ps", "--state", str(tmp_path / f"ps-{i}"), "--checkpoint-every", "5")
            )
            for i in range(2)
        ]
        addresses = [shard.address for shard in shards]
        first = Worker(manager, addresses, "w0", ITERATIONS, once(17, spoil))
        assert_trained([first, Worker(manager, addresses, "w1", ITERATIONS)])


class Disk:
    """A shard's folder of checkpoints, whose disk may be slow or full."""

    def __init__(self, stack, folder, every):
        store = CheckpointStore(folder)
        stack.callback(store.close)
        self.every = every
        self.due = []  # versions whose checkpoints have yet to be written
        self.job = store.job("job/run")

    def write(self):
        """Write what is due."""
        while self.due:
            shard = Shard(LAYOUT)
            shard.initialise(torch.zeros(1, dtype=torch.float64), self.due.pop(0))
            self.job.save(ShardCheckpoint("job/run", 0, Synchronisation(), None, shard.snapshot()))
            self.job._thread.submit(int).result(120)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_there_always_is_a_checkpoint_that_all_shards_have(tmp_path_factory, seed):
    """Whatever intervals they have, whichever writes fail or are late, and whatever workers know by then.

    Where none fails, it is the newest that all have written.
    """

    def write(path, checkpoint):
        if checkpoint.snapshot.version and chance.random() < failing:
            raise OSError(errno.ENOSPC, "the disk is full")
        written(path, checkpoint)

    chance, written = random.Random(seed), files.write
    failing = chance.choice((0.0, 0.2, 0.5, 0.7))
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write", write)
        disks = [
            Disk(stack, tmp_path_factory.mktemp("shard"), chance.choice((1, 1, 2, 3)))
            for _ in range(chance.choice((2, 3)))
        ]
        known = {worker: [] for worker in range(chance.choice((1, 2)))}
        for version in range(40):
            for disk in disks:
                if version % disk.every == 0:
                    disk.write()  # the copy for a checkpoint waits for the one before
                    disk.due.append(version)
                if not version:
                    disk.write()
            pushes = [(worker, disk) for worker in known for disk in range(len(disks))]
            told = {worker: common_checkpoint(shards) for worker, shards in known.items()}
            answers = {}
            chance.shuffle(pushes)
            for worker, disk in pushes:
                if chance.random() < 0.3:
                    disks[disk].write()
                job = disks[disk].job
                kept, tried = told[worker]
                job.mark_common(-1 if kept is None else kept, tried)
                answers[worker, disk] = frozenset(job.versions), job.tried
                assert set.intersection(*(set(each.job.versions) for each in disks))
            known = {worker: [answers[worker, disk] for disk in range(len(disks))] for worker in known}
        for disk in disks:
            disk.write()
        in_all = set.intersection(*(set(disk.job.versions) for disk in disks))
        assert failing or max(in_all) == version - version % math.lcm(*(disk.every for disk in disks))
