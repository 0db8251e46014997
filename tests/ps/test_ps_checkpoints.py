"""A shard's checkpoints: complete files or none, from which it continues to the last bit."""

import errno
import json
import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.errors import UnavailableError
from idl.layout import Group, Layout, Part, Tensor
from idl.synchronisation import Synchronisation
from ps import checkpoint as files
from ps.checkpoint import ShardCheckpoint, UnreadableError
from ps.checkpoint_store import CheckpointStore
from ps.config import ParameterServerConfig
from ps.jobs import Jobs
from ps.model_tensors import ModelTensors
from ps.optimizers import DTYPES
from ps.shard import Shard
from tests.disks import fill
from tests.ps.tensors import OPTIMIZERS, push, slice_of, values

KERAS = [
    ("keras_sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": 1.0}),
    ("keras_adam", {"lr": 0.01, "amsgrad": 1.0}),
    ("keras_adamw", {"lr": 0.01, "weight_decay": 0.1}),
]
LAYOUT = Layout("float64", "sgd", (Group(3, {"lr": 0.1, "momentum": 0.9}),))


def groups(options, lr):
    """Lay out parameters with different options, a group of none, and statistics."""
    other = {**options, "lr": lr}
    return (Group(5, options), Group(0, options), Group(2, {}, statistics=True), Group(3, other))


def gradient(shard, seed):
    """Make a gradient that depends on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    dtype = DTYPES[shard.layout.dtype]
    return torch.randn(shard.layout.elements, generator=generator, dtype=torch.float64).to(dtype)


def step(shard, seed, options=None):
    """Take a step with two uneven gradients that depend on the seed alone, with new options if given."""
    push(shard, 0, 1, 4, gradient(shard, seed), groups=options)
    push(shard, 1, 3, 4, gradient(shard, seed + 1))
    shard.step()


def checkpoint(shard, job="job/run", attempt=0, model=None):
    """Make the checkpoint of a shard's present state."""
    return ShardCheckpoint(job, attempt, Synchronisation(), model, shard.snapshot())


# -- the file


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "options"), [*OPTIMIZERS, *KERAS])
def test_a_restored_shard_goes_on_to_the_last_bit(tmp_path, name, options, dtype, before):
    """A shard restored from a file takes the same steps, with every optimiser and with statistics."""
    first = Shard(Layout(dtype, name, groups(options, 0.01)))
    first.initialise(torch.ones(10, dtype=DTYPES[dtype]), 40)
    for seed in range(before):
        step(first, seed, groups({"lr": 0.03} if "lr" in options else options, 0.02))
    files.write(tmp_path / "file", checkpoint(first))

    second = Shard(first.layout)
    second.restore(files.read(tmp_path / "file").snapshot)
    assert (second.version, second.steps) == (40 + before, before)
    for seed in range(10, 14):
        for shard in (first, second):
            step(shard, seed)
        assert torch.equal(values(first), values(second))
    assert first.slots() == second.slots()
    for slot in first.slots():
        assert first.slot(slot) == second.slot(slot)


def test_all_that_a_job_is_survives(tmp_path):
    """What workers have agreed on is read as it was written, names in any script included."""
    model = ModelTensors("wörker", [Tensor("", (3, 2), "float64"), Tensor("schicht.0", (), "int64")])
    shard = Shard(LAYOUT)
    shard.initialise(torch.arange(3, dtype=torch.float64), 7)
    written = replace(checkpoint(shard, "jöb/run", 5, model), part=Part(1, 2, 1000))
    files.write(tmp_path / "file", written)
    there = files.read(tmp_path / "file")
    assert replace(there, snapshot=written.snapshot) == written
    assert there.snapshot.layout == LAYOUT
    assert torch.equal(there.snapshot.parameters, written.snapshot.parameters)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_torn_file_is_taken(tmp_path_factory, data):
    """A file that ends early, or of which any bit has changed, is refused as torn."""
    path = tmp_path_factory.mktemp("torn") / "file"
    shard = Shard(LAYOUT)
    shard.initialise(torch.ones(3, dtype=torch.float64), 0)
    step(shard, 0)
    files.write(path, checkpoint(shard))
    there = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(there) - 1))
    if data.draw(st.booleans(), label="cut"):
        there = there[:position]
    else:
        there[position] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(there)
    for look in (files.check, files.read):
        with pytest.raises(UnreadableError, match=r"torn|not a checkpoint"):
            look(path)


# -- the folder


@pytest.fixture
def store(tmp_path):
    """Make the folder of a shard process."""
    store = CheckpointStore(tmp_path / "state", ledger=tmp_path / "ledgers")
    yield store
    store.close()


def settle(job):
    """Wait until a job's checkpoints are written."""
    job._thread.submit(int).result(120)


def save(job, versions):
    """Save checkpoints of some versions."""
    for version in versions:
        shard = Shard(LAYOUT)
        shard.initialise(torch.full((3,), float(version), dtype=torch.float64), version)
        job.save(checkpoint(shard))
    settle(job)


def saved(store, versions):
    """Make a job's store with checkpoints of some versions."""
    job = store.job("job/run")
    save(job, versions)
    return job


def test_the_latest_stay_and_what_all_have(store):
    """The three newest checkpoints are kept, and the newest that all shards have."""
    job = saved(store, range(5))
    assert job.versions == (2, 3, 4)
    job.mark_common(3, 3)
    save(job, (5, 6, 7))
    assert job.versions == (3, 4, 5, 6, 7)  # another shard may have yet to write 4
    job.mark_common(6, 6)
    save(job, (8,))
    assert job.versions == store.job("job/run").versions == (6, 7, 8)


def test_a_checkpoint_is_on_the_disk_before_others_go(store, tmp_path, disk_calls):
    """A file is complete before it is renamed, and renamed before an older one is removed."""
    job = saved(store, (10, 20, 30, 40))
    (folder,) = (path for path in (tmp_path / "state").iterdir() if path.is_dir())
    expected = [("fsync", str(folder.parent))]  # where the job's folder has been made
    for version in (10, 20, 30, 40):
        part, path = (str(folder / f"{version:012d}.{suffix}") for suffix in ("part", "checkpoint"))
        size = (folder / "000000000040.checkpoint").stat().st_size
        expected += [("fsync", part, size), ("replace", part, path), ("fsync", str(folder))]
    expected.append(("unlink", str(folder / "000000000010.checkpoint")))
    assert disk_calls == expected
    assert job.versions == (20, 30, 40)


def test_a_torn_checkpoint_is_skipped(store, tmp_path, caplog):
    """When it is read, a torn file is ignored, an older one is used, and leftovers are removed."""
    saved(store, (10, 20, 30))
    (folder,) = (path for path in (tmp_path / "state").iterdir() if path.is_dir())
    newest = max(folder.glob("*.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-1])
    (folder / "000000000040.part").write_bytes(b"half")
    job = store.job("job/run")
    assert job.newest().snapshot.version == 20
    assert job.versions == (10, 20)
    assert "torn" in caplog.text
    assert not list(folder.glob("*.part"))
    # One that goes while the process runs is no different.
    max(folder.glob("*20.checkpoint")).write_bytes(b"")
    with pytest.raises(UnreadableError, match="version 20 cannot be read"):
        job.read(20)
    assert job.newest().snapshot.version == 10


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_disk_that_cannot_be_read_has_not_lost_its_files(store, tmp_path, monkeypatch, number):
    """While no file can be read, it is to be tried again; a file that alone cannot be read is left out."""
    saved(store, (10, 20, 30))
    read_bytes, broken = Path.read_bytes, {"000000000010", "000000000020", "000000000030"}

    def failing(path):
        if path.stem in broken:
            raise OSError(number, os.strerror(number), str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    job = store.job("job/run")
    with pytest.raises(UnavailableError, match="version 30 cannot be read at present"):
        job.newest()
    with pytest.raises(UnavailableError, match="cannot be read at present"):
        store.load("job/run").result(120)
    assert job.versions == (10, 20, 30)
    broken.remove("000000000020")
    assert job.newest().snapshot.version == 20
    assert job.versions == (10, 20)


def test_a_job_whose_thread_cannot_be_started_is_tried_again(store, monkeypatch):
    """It is refused until there can be one; then its checkpoints are written."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(UnavailableError, match="can't start new thread"):
            store.job("job/run")
    assert saved(store, (10,)).versions == (10,)


def test_going_back_forgets_what_came_after(store):
    """Going back removes later checkpoints, even one that is being written at the time."""
    job = saved(store, (10, 20, 30))
    shard = Shard(LAYOUT)
    shard.initialise(torch.zeros(3, dtype=torch.float64), 40)
    held, go = threading.Event(), threading.Event()
    job._thread.submit(lambda: (held.set(), go.wait(30)))
    held.wait(30)
    job.save(checkpoint(shard))  # waits behind what was submitted before
    back = job.go_back(20)
    go.set()
    assert back.result(120).snapshot.version == 20
    assert job.versions == store.job("job/run").versions == (20,)


@pytest.mark.parametrize("name", ["../../x", "a/b", ".", "x" * 200, "名前/*?", "a b"])
def test_any_name_is_a_folder_of_its_own(tmp_path, name):
    """A job's name, whatever its characters, leads to a folder of its own inside the shard's."""
    store = CheckpointStore(tmp_path / "state")
    shard = Shard(LAYOUT)
    shard.initialise(torch.zeros(3, dtype=torch.float64), 1)
    for each in (name, name + "_", "a_b"):
        job = store.job(each)
        job.save(checkpoint(shard, each))
        settle(job)
        assert store.job(each).newest().job == each
    assert len([path for path in (tmp_path / "state").iterdir() if path.is_dir()]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    store.close()


def test_old_jobs_are_removed(store, tmp_path):
    """A job that has not been written to for long is removed, unless it is still held."""
    saved(store, (10,))
    (folder,) = (path for path in (tmp_path / "state").iterdir() if path.is_dir())
    store.remove_old(3600, ())
    settle(store)
    for path in (folder, *folder.iterdir()):
        os.utime(path, (0, 0))
    store.remove_old(3600, {"job/run"})
    settle(store)
    assert store.job("job/run").versions == (10,)
    store.remove_old(3600, {"another"})
    settle(store)
    assert store.job("job/run").versions == ()
    assert (tmp_path / "state" / "lock").exists()


@pytest.mark.parametrize("name", ["photos", "project-0123456789abcdef"])
def test_folders_of_others_are_not_removed(store, tmp_path, name):
    """Nor are files of others in a job's folder, nor the folder then; a lock file keeps its content."""
    saved(store, (10,))
    store.close()
    state = tmp_path / "state"
    (job,) = (path for path in state.iterdir() if path.is_dir())
    others = [
        state / name / "2019" / "a.part",
        state / name / "notes.part",
        job / "notes.part",
        state / "lock",
    ]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept")
    link = state / f"link-{'0' * 16}"
    link.symlink_to(state / name)
    for path in state.rglob("*"):
        os.utime(path, (0, 0))
    store = CheckpointStore(state)
    assert store.job("job/run").versions == (10,)
    store.remove_old(3600, ())
    store.close()
    assert [path.read_text() for path in others] == ["kept"] * 4
    assert len(list(job.iterdir())) == 2
    assert link.exists()


def test_a_shard_that_was_away_for_long_keeps_its_jobs(store, tmp_path):
    """Workers have the full time to return, however long the shard was away and if its clock jumped."""
    saved(store, (10,))
    store.close()
    (folder,) = (path for path in (tmp_path / "state").iterdir() if path.is_dir())
    for path in (folder, *folder.iterdir()):
        os.utime(path, (0, 0))
    jobs = Jobs(ParameterServerConfig(state=tmp_path / "state", keep=100.0))
    jobs.forget(1000.0)
    jobs.forget(1099.0)
    settle(jobs._store)
    assert folder.is_dir()
    jobs.forget(1101.0)
    settle(jobs._store)
    assert not folder.exists()
    jobs.close()


def test_a_line_that_was_cut_does_not_spoil_the_next(store, tmp_path):
    """The ledger continues on a new line after one that its process could not finish."""
    job = saved(store, (1,))
    job.append_to_ledger({"iteration": 1})
    settle(job)
    (ledger,) = tmp_path.glob("ledgers/*.jsonl")
    ledger.write_bytes(ledger.read_bytes() + b'{"iterat')
    job.append_to_ledger({"iteration": 2})
    settle(job)
    assert ledger.read_text().splitlines() == ['{"iteration": 1}', '{"iterat', '{"iteration": 2}']


def test_a_checkpoint_on_a_full_disk_names_its_file(small_disk, caplog):
    """So does a line of the ledger."""
    store = CheckpointStore(small_disk / "state", ledger=small_disk)
    job = saved(store, (1,))
    job.append_to_ledger({"iteration": 1})
    fill(small_disk / "ballast")
    save(job, (2,))
    job.append_to_ledger({"iteration": "x" * 2**16})
    settle(job)
    found = [re.search(r"No space left on device: '/.*\.(part|jsonl)'$", line) for line in caplog.messages]
    assert {one and one[1] for one in found} == {"part", "jsonl"}
    store.close()


# -- a job


def until_there(ask, *arguments):
    """Repeat a call, as clients do, until the disk has answered, and return the result."""
    while True:
        try:
            return ask(*arguments)
        except UnavailableError:
            time.sleep(0.001)


@pytest.mark.parametrize("deterministic", [False, True])
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_job_that_goes_back_takes_the_same_steps(tmp_path_factory, deterministic, data):
    """Through steps, attempts at any version, and restarts, parameters are those of the steps alone."""
    layout = Layout("float64", "adam", (Group(4, {"lr": 0.1}),))
    expected = [torch.zeros(4, dtype=torch.float64)]  # by version
    reference = Shard(layout, deterministic)
    reference.initialise(expected[0].clone(), 0)
    folder = tmp_path_factory.mktemp("state")
    every = data.draw(st.integers(1, 4), label="every")
    config = ParameterServerConfig(deterministic, state=folder, checkpoint_every=every, ledger=folder / "l")
    jobs = Jobs(config)
    job = jobs.add("j", layout, Synchronisation(), None)
    job.initialise("w", "i", expected[0].clone(), 0, 0)
    actions = st.tuples(st.sampled_from(["step", "step", "part", "fence", "restart"]), st.integers(0, 99))
    for what, which in data.draw(st.lists(actions, max_size=25), label="actions"):
        shard = job.shard
        version = shard.version
        if what == "step":
            if not shard.has_used(slice_of(version, 0, 1)):
                push(shard, 0, 1, 4, gradient(shard, version))
            push(shard, 1, 3, 4, gradient(shard, version + 1))
            if job.copying is not None:
                job.copying.result(120)  # the shard must stay as it is until then
            shard.step()
            job.record_step()
            if shard.version == len(expected):
                step(reference, version)
                expected.append(values(reference))
        elif what == "part" and not shard.has_used(slice_of(version, 0, 1)):
            push(shard, 0, 1, 4, gradient(shard, version))
        elif what == "fence":
            assert job.fence(job.attempt + 1)
            settle(job.store)
            there = [*job.checkpoints, version]
            until_there(job.rewind, there[which % len(there)])
            job.rewind(there[which % len(there)])
        elif what == "restart":
            job.store.close()  # as if killed once the last checkpoint was written
            jobs._store.close()
            jobs = Jobs(config)
            job = until_there(jobs.find, "j")
            assert job.shard.version == version - version % every
        torch.testing.assert_close(values(job.shard), expected[job.shard.version], rtol=1e-9, atol=0)
    version = job.shard.version
    jobs.close()
    check_ledger(folder, version)
    jobs = Jobs(config)
    assert until_there(jobs.find, "j").shard.version == version  # a clean end loses nothing
    jobs.close()


def test_the_ledger_tells_what_broke_off(tmp_path):
    """The slices of a step tile its batch; one that broke off is listed with its counted elements."""
    jobs = Jobs(ParameterServerConfig(state=tmp_path, ledger=tmp_path / "l"))
    job = jobs.add("j", LAYOUT, Synchronisation(), None)
    shard = job.shard
    job.initialise("w", "i", torch.zeros(3, dtype=torch.float64), 7, 2)
    ones = torch.ones(3, dtype=torch.float64)
    for start, count, worker, brings in ((0, 6, "a", 2), (0, 2, "b", 1), (2, 4, "c", 1), (6, 2, "d", 3)):
        contribution = shard.begin(slice_of(7, start, count, 8, batch_start=0), worker)
        shard.add(contribution, ones[:brings])
        shard.interrupt(contribution)
    assert shard.is_complete
    shard.step()
    job.record_step()
    jobs.close()
    (ledger,) = tmp_path.glob("l/*.jsonl")
    assert [json.loads(line) for line in ledger.read_text().splitlines()] == [
        {"attempt": 2, "initialised": 7},
        {
            "attempt": 2,
            "iteration": 7,
            "slices": [[0, 2, "b"], [2, 4, "c"], [6, 2, "d"]],
            "broken": [[0, 6, "a", 2]],
        },
    ]


def check_ledger(folder, version):
    """Check that the ledger has every step up to a version, each with the whole batch, in order."""
    (path,) = folder.glob("l/*.jsonl")
    at = None
    for line in path.read_text().splitlines():
        record = json.loads(line)
        for begins in ("initialised", "rewound", "restored"):
            at = record.get(begins, at)
        if "iteration" in record:
            assert record["iteration"] == at
            assert record["slices"] == [[0, 1, ""], [1, 3, ""]]
            at += 1
    assert at == version
