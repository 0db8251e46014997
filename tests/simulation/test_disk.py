"""The simulated disk: what outlives a process and a machine, and how operations fail."""

import errno
import sqlite3

import pytest

from tests.simulation import disk, modules
from tests.simulation.cluster import Scenario, simulate
from tests.simulation.disk import Disk
from tests.simulation.product import product
from tests.simulation.world import World


def act(world, own, action):
    """Let a process of its own act on a disk, and return what the action returns, or None if it dies."""
    process, results = world.process("service"), []
    own.attach(process)
    world.spawn(process, lambda: results.append(action(own.path)))
    world.run(lambda: results or process.is_dead or world.failures, 100.0)
    assert not world.failures, world.failures
    process.kill()
    return results[0] if results else None


def after_crashes(folder, action, look, seeds=40):
    """Return what a look at a disk shows after the machine has crashed, once for each seed."""
    seen = []
    for seed in range(seeds):
        with World(seed) as world:
            own = Disk(folder / str(seed), seed)
            act(world, own, action)
            own.lose_writes()
            seen.append(look(folder / str(seed)))
    return seen


def write(path, content, mode="wb", flush=False):
    """Write a file."""
    with path.open(mode) as stream:
        stream.write(content)
        stream.flush()
        if flush:
            disk.os.fsync(stream.fileno())


def flush(folder):
    """Flush a folder's entries, as `os.fsync` does."""
    descriptor = disk.os.open(folder, disk.os.O_RDONLY)
    disk.os.fsync(descriptor)
    disk.os.close(descriptor)


def test_bytes_that_were_not_flushed_may_be_lost(tmp_path):
    """From the end on, or they are zeros; those that were flushed stay."""

    def action(folder):
        write(folder / "file", b"abc", flush=True)
        flush(folder)
        write(folder / "file", b"defghi", mode="ab")

    seen = after_crashes(tmp_path, action, lambda folder: (folder / "file").read_bytes())
    assert {b"abc", b"abcdefghi", b"abcde", b"abcde\0\0\0\0"} <= set(seen)
    assert all(b"abcdefghi".startswith(content.rstrip(b"\0")) for content in seen)
    assert all(content.startswith(b"abc") for content in seen)


def test_a_file_that_was_truncated_may_have_its_former_content(tmp_path):
    """Or a part of the new one."""

    def action(folder):
        write(folder / "file", b"abc", flush=True)
        flush(folder)
        write(folder / "file", b"123")

    seen = after_crashes(tmp_path, action, lambda folder: (folder / "file").read_bytes())
    assert {b"abc", b"123", b"12"} <= set(seen)


def test_entries_survive_once_their_folder_is_flushed(tmp_path):
    """Before, those of the first changes do; files are there again that were replaced or removed."""

    def action(folder, flushes=False):
        (folder / "sub").mkdir()
        write(folder / "old", b"old", flush=True)
        write(folder / "gone", b"gone", flush=True)
        flush(folder)
        write(folder / "sub" / "file", b"sub", flush=True)
        write(folder / "part", b"new", flush=True)
        disk.os.replace(folder / "part", folder / "old")
        (folder / "gone").unlink()
        if flushes:
            flush(folder)
            flush(folder / "sub")

    def look(folder):
        return tuple((path.name, path.read_text()) for path in sorted(folder.rglob("*")) if path.is_file())

    sub, gone = ("file", "sub"), ("gone", "gone")
    before = (gone, ("old", "old"))
    seen = after_crashes(tmp_path, action, look, seeds=80)
    steps = {before, (*before, ("part", "new")), (gone, ("old", "new")), (("old", "new"),)}
    assert set(seen) == steps | {(*step, sub) for step in steps}

    (tmp_path / "flushed").mkdir()
    kept = after_crashes(tmp_path / "flushed", lambda folder: action(folder, flushes=True), look)
    assert set(kept) == {(("old", "new"), sub)}


def test_a_process_dies_in_the_midst_of_an_operation(tmp_path):
    """What it has written before is there, and of the last piece the first bytes."""
    seen = set()
    for seed in range(20):
        with World(seed) as world:
            own, dead = Disk(tmp_path / str(seed), seed), []
            own.die_at(4, dead.append)

            def action(folder):
                write(folder / "one", b"12")
                write(folder / "two", b"345")
                return True

            assert act(world, own, action) is None
            assert dead == [own]
            assert (tmp_path / str(seed) / "one").read_bytes() == b"12"
            seen.add((tmp_path / str(seed) / "two").read_bytes())
    assert seen == {b"", b"3", b"34", b"345"}


@pytest.mark.parametrize(
    ("fault", "number"), [({"is_full": True}, errno.ENOSPC), ({"fails": "write"}, errno.EIO)]
)
def test_writes_fail(tmp_path, fault, number):
    """Those of files and of SQLite, until there is room again, or once."""
    with World(1) as world:
        own = Disk(tmp_path / "disk", 1)

        def action(folder):
            write(folder / "file", b"abc")
            file = opened(folder)
            vars(own).update(fault)
            with pytest.raises(OSError, match=f"Errno {number}"):
                write(folder / "file", b"d")
            vars(own).update(fault)
            file.execute("BEGIN IMMEDIATE")
            file.execute("INSERT INTO numbers VALUES (0)")
            with pytest.raises(sqlite3.OperationalError, match="disk"):
                file.execute("COMMIT")
            own.is_full = False
            write(folder / "file", b"e")
            file.execute("COMMIT")
            return True

        assert act(world, own, action)
        assert (tmp_path / "disk" / "file").read_bytes() == b"e"
        own.lose_process()
        assert numbers(tmp_path / "disk") == [0]


def test_operations_of_a_slow_disk_take_their_time(tmp_path):
    """On the virtual clock."""
    with World(1) as world:
        own = Disk(tmp_path / "disk", 1)
        own.delay = 10.0
        begin = world.now
        act(world, own, lambda folder: write(folder / "file", b"abc"))
        assert 1.0 < world.now - begin < 20.0


def opened(folder):
    """Open a database in WAL, as the manager's state is."""
    file = disk.sqlite3.connect(folder / "numbers.sqlite", isolation_level=None)
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA synchronous=NORMAL")
    if not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        commit(file, "CREATE TABLE numbers (number)")
    return file


def commit(file, *statements):
    """Execute statements in a transaction."""
    for statement in ("BEGIN IMMEDIATE", *statements, "COMMIT"):
        file.execute(statement)


def numbers(folder):
    """Return the numbers in the database, which must be whole."""
    file = sqlite3.connect(folder / "numbers.sqlite")
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found = [number for (number,) in file.execute("SELECT number FROM numbers ORDER BY number")]
    file.close()
    return found


def test_commits_that_were_not_flushed_may_be_lost(tmp_path):
    """The last ones; those up to one that was flushed, or a checkpoint, are there."""

    def action(folder):
        file = opened(folder)
        for number in range(400):
            file.execute(f"PRAGMA synchronous={'FULL' if number in (5, 200) else 'NORMAL'}")
            commit(file, f"INSERT INTO numbers VALUES ({number})")

    seen = after_crashes(tmp_path, action, numbers, seeds=12)
    assert all(found == list(range(len(found))) and len(found) > 200 for found in seen)
    assert len({len(found) for found in seen}) > 6


def test_a_database_goes_on_after_its_process_died_in_a_transaction(tmp_path):
    """What it has committed is there, and nothing is locked."""
    with World(1) as world:
        own = Disk(tmp_path / "disk", 1)

        def action(folder, first):
            file = opened(folder)
            for number in range(first, first + 10):
                commit(file, f"INSERT INTO numbers VALUES ({number})")

        own.die_at(5, Disk.lose_process)
        act(world, own, lambda folder: action(folder, 0))
        act(world, own, lambda folder: action(folder, 3))
        own.lose_process()
        assert numbers(tmp_path / "disk") == list(range(13))


def test_a_clock_of_the_day_jumps_alone(tmp_path):
    """The one that deadlines use goes on."""
    with World(1) as world:
        own = Disk(tmp_path / "disk", 1)

        def action(folder):
            before = modules.time.time(), modules.time.monotonic()
            own.process.clock = 3_600.0
            return modules.time.time() - before[0], modules.time.monotonic() - before[1]

        assert act(world, own, action) == (3_600.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [pytest.param("ps.checkpoint", id="of a file"), pytest.param("ps.checkpoint_store", id="of a folder")],
)
def test_a_flush_that_is_left_out_is_found(monkeypatch, module):
    """A shard's checkpoint that is not on the disk when it counts is one that a crash may take."""
    with product() as simulated:
        writer = simulated.module(module)
    monkeypatch.setattr(writer, "os", modules.like(disk.os, fsync=lambda descriptor: None))
    outcomes = [simulate(Scenario.of(seed, kinds=("crash shard",))) for seed in (1, 3)]
    assert any("no version in common" in str(outcome) for outcome in outcomes), outcomes


@pytest.mark.slow
def test_a_jobs_folder_outlives_the_machine_whoever_has_made_it(tmp_path):
    """Also one whose process died before it had flushed that, which the next one cannot see."""
    with product() as simulated:
        store = simulated.module("ps.checkpoint_store").JobStore

        def make_again(folder):
            (folder / "job").mkdir()
            store(folder / "job", "job", None)._make_folder()

        assert all(after_crashes(tmp_path, make_again, lambda folder: (folder / "job").exists()))


def test_a_job_outlives_its_manager_s_machine():
    """From its first iteration on."""
    for seed in (3, 8):  # which crash it in the first seconds
        outcome = simulate(Scenario.of(seed, kinds=("crash manager",)))
        assert outcome.fired
        assert not outcome.wrongs, outcome
