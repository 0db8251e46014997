"""One damaged row of a manager's state costs what it holds at most, and never another job.

Rows of jobs and members are there twice: where one of the two is damaged, nothing is lost.

The file is one that a real manager has written; after the damage, a real one is started with it.
"""

import contextlib
import logging
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.learning.saved_models import pack_models
from batchsize_manager.policies import PolicyOptions
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.changes import Logged
from batchsize_manager.storage.state_file import StateFile
from batchsize_manager.storage.state_format import STATE_FILE, StateError
from idl.errors import NotMemberError
from rpc.client import Client
from tests.batchsize_manager import test_restart as jobs
from tests.batchsize_manager.storage.test_state import begun, completed
from tests.batchsize_manager.test_manager_restart import Worker
from tests.services import serving

_wire = idl.batchsize_manager

pytestmark = pytest.mark.usefixtures("time_to_close")

JOBS = ("first", "second", "third")
TABLES = ("runs", "members", "copies", "workers", "iterations", "events")
TWICE = {"runs": ("run", "job", "policy", "state"), "members": ("run", "worker", "state")}
DELETED = "the row"


@dataclass(frozen=True)
class Damage:
    """A value in place of a cell's; DELETED: the row is away. Row and column count modulo their number."""

    table: str
    row: int
    column: int
    value: Any


DAMAGES = st.builds(
    Damage,
    st.sampled_from(TABLES),
    st.integers(0, 99),
    st.integers(0, 99),
    st.sampled_from([DELETED, None, "", "nonsense", "{", "[]", "[[1]]", "null", b"", b"\xff", 0, -1])
    | st.sampled_from([2**31, 2**62, 2**63 - 1, -(2**63), 0.5, 1e300, float("inf")])
    | st.binary(max_size=200)
    | st.text(max_size=8),
)


OPTIONS = PolicyOptions(predictor="ema")  # which has no use for the models of NARX that jobs have here


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a manager that was stopped with three jobs, each with models, records and events."""
    folder = tmp_path_factory.mktemp("state")
    rng = np.random.default_rng(0)
    learned = pack_models({"narx": {name: {"weights": rng.normal(size=3)} for name in jobs.WORKERS}})
    with jobs.manager(folder, options=OPTIONS) as manager:
        for name in JOBS:
            managed = manager.begin(name=name)
            jobs.keep(managed)
            manager.change(managed, total_batch_size=16)
            for _ in range(3):
                jobs.train(managed.job, 2)
                jobs.keep(managed)
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE)) as file, file:
        file.execute("UPDATE runs SET learned = ?", (learned,))
    return folder


def started(folder):
    """Start a manager with a state."""
    config = JobConfig(workers=len(jobs.WORKERS))
    return ManagerService(ManagerConfig("proportional", OPTIONS, job=config, state=folder))


def restored(service):
    """Return what is restored of each job."""
    return {
        managed.name: (
            managed.run,
            managed.job.saved,
            managed.job.history(0, 1000),
            [event for _, event in managed.log],
        )
        for managed in service.jobs
    }


@contextlib.contextmanager
def warnings():
    """A list of the warnings of the manager while the block runs."""
    handler, logger = Kept(logging.WARNING), logging.getLogger("batchsize_manager")
    logger.addHandler(handler)
    try:
        yield handler.messages
    finally:
        logger.removeHandler(handler)


class Kept(logging.Handler):
    """A handler that keeps messages."""

    def __init__(self, level):
        super().__init__(level)
        self.messages = []

    def emit(self, record):
        """Keep a record's message."""
        self.messages.append(record.getMessage())


def further_plans(service, leave_out=()):
    """Return what each job plans from iteration 6 on."""
    kept = [managed for managed in service.jobs if managed.name not in leave_out]
    return {managed.name: jobs.plans_from(managed.job, 6) for managed in kept}


def damage(path, wanted):
    """Damage a cell; return its column, and the name of the job whose row it was, None of a copy."""
    keys = {"workers": "run, number", "iterations": "run, iteration", "copies": "of, id"}.get(
        wanted.table, "id"
    )
    where = " AND ".join(f"{column} = ?" for column in keys.split(", "))
    with writable(path, wanted.table) as file:
        rows = file.execute(f"SELECT {keys} FROM {wanted.table} ORDER BY {keys}").fetchall()
        key = rows[wanted.row % len(rows)]
        columns = [name for _, name, *_ in file.execute(f"PRAGMA table_info({wanted.table})")]
        column = columns[wanted.column % len(columns)]
        job = None
        if wanted.table != "copies":
            owner = "id" if wanted.table == "runs" else "run"
            query = f"SELECT job FROM runs WHERE id = (SELECT {owner} FROM {wanted.table} WHERE {where})"
            (job,) = file.execute(query, key).fetchone()
        if wanted.value == DELETED:
            file.execute(f"DELETE FROM {wanted.table} WHERE {where}", key)
        else:
            with contextlib.suppress(sqlite3.IntegrityError):  # a key, which the file itself keeps sound
                file.execute(f"UPDATE {wanted.table} SET {column} = ? WHERE {where}", (wanted.value, *key))
        return column, job


@contextlib.contextmanager
def writable(path, table):
    """A connection that may write NULL everywhere: the schema keeps it out, and what a disk does may not."""

    def declare(sql):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
            file.execute("PRAGMA writable_schema=ON")
            file.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, table))

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        (sql,) = file.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    declare(sql.replace(" NOT NULL", ""))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        yield file
    declare(sql)


@pytest.mark.slow
@settings(max_examples=60)
@given(DAMAGES)
@example(Damage("runs", 1, 8, b"\x00"))
@example(Damage("runs", 1, 4, "{"))
@example(Damage("runs", 1, 0, 77))
@example(Damage("members", 2, 3, None))
@example(Damage("members", 2, 0, 77))
@example(Damage("members", 2, 0, DELETED))
@example(Damage("copies", 2, 2, "{"))
@example(Damage("copies", 2, 0, DELETED))
@example(Damage("workers", 3, 0, DELETED))
@example(Damage("iterations", 8, 8, b"torn"))
@example(Damage("events", 4, 3, b"\xff"))
def test_a_damaged_row_costs_what_it_holds(written, tmp_path_factory, wanted):
    """The manager starts, all other jobs are as they were, and a warning names the job and the file.

    What is there twice is as it was, too, and damage is told of once.
    """
    sound, folder = (shutil.copytree(written, tmp_path_factory.mktemp("s") / "state") for _ in range(2))
    service = started(sound)
    expected, plans = restored(service), further_plans(service)
    service.stop()
    assert list(expected) == list(JOBS)
    column, job = damage(folder / STATE_FILE, wanted)
    with warnings() as warned:
        service = started(folder)
    is_lost = wanted.table == "runs" and (wanted.value == DELETED or column not in TWICE["runs"])
    found, further = restored(service), further_plans(service, leave_out=[job] if is_lost else ())
    service.stop()
    for other in set(JOBS) - {job}:
        assert (found[other], further[other]) == (expected[other], plans[other])
    if not is_lost:
        assert job is None or job in found  # and goes on
    elif job not in found:
        assert [text for text in warned if job in text and str(folder / STATE_FILE) in text]
    if column in TWICE.get(wanted.table, ()) and not is_lost:
        assert (found[job], further[job]) == (expected[job], plans[job])
    with warnings() as warned:
        again = started(folder)
    assert restored(again).keys() == found.keys()
    again.stop()
    assert not [text for text in warned if "its copy" in text]  # that was mended


def flip(text, place):
    """Return a text with one bit of another value, as bytes."""
    flipped = bytearray(text.encode())
    byte, bit = divmod(int(place * 8 * len(flipped)), 8)
    flipped[byte] ^= 1 << bit
    return bytes(flipped)


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, columns in TWICE.items() for column in columns]
)
@pytest.mark.parametrize("place", [0.2, 0.999])
def test_a_flipped_bit_of_a_job_or_member_costs_nothing(written, tmp_path, table, column, place):
    """In either copy: the manager tells of the row, writes it again, and all jobs are as they were."""
    sound = shutil.copytree(written, tmp_path / "sound")
    service = started(sound)
    expected = restored(service)
    service.stop()
    folder = shutil.copytree(written, tmp_path / "state")
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE)) as file, file:
        (number, value) = file.execute(f"SELECT id, {column} FROM {table} ORDER BY id LIMIT 1").fetchone()
        changed = value ^ 1 << int(place * 20) if isinstance(value, int) else flip(value, place)
        as_it_was = "INTEGER" if isinstance(value, int) else "TEXT"
        file.execute(f"UPDATE {table} SET {column} = CAST(? AS {as_it_was}) WHERE id = ?", (changed, number))
        file.execute("DELETE FROM copies WHERE id != ?", (number,))  # those of sound rows are made again
    with warnings() as warned:
        service = started(folder)
    assert restored(service) == expected
    service.stop()
    (warning,) = warned
    what = "its state" if table == "runs" else f"the state of its member {jobs.WORKERS[0]}"
    assert warning == (
        f"{folder / STATE_FILE}: job first: {what} was damaged, and is written again from its copy"
    )
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE)) as file, file:
        rows = [file.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TWICE]
        assert file.execute("SELECT count(*) FROM copies").fetchone()[0] == sum(rows)


def content_of(path, name):
    """Return the first and last byte, in the file, of the cells of a table or index of one page."""
    with contextlib.closing(sqlite3.connect(path)) as file:
        (page,) = file.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    begin = (page - 1) * size
    header = path.read_bytes()[begin : begin + 8]
    assert header[0] == 10, "the page is an index's leaf"
    return begin + int.from_bytes(header[5:7], "big"), begin + size


@pytest.mark.slow
def test_a_flipped_bit_of_an_index_costs_nothing(written, tmp_path):
    """No job or member is lost: the index is made again, or the manager does not start with the file."""
    folder = shutil.copytree(written, tmp_path / "state")
    path = folder / STATE_FILE
    sound = path.read_bytes()
    service = started(folder)
    expected = restored(service)
    service.stop()
    first, end = content_of(path, "sqlite_autoindex_members_1")
    mended = 0
    for place in range(8 * first, 8 * end, 23):  # each of a byte's bits in turn
        damaged = bytearray(sound)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        for rest in (f"{path}-wal", f"{path}-shm"):
            Path(rest).unlink(missing_ok=True)
        with warnings() as warned:
            try:
                service = started(folder)
            except StateError:
                continue
        assert restored(service) == expected, f"bit {place % 8} of byte {place // 8}"
        service.stop()
        mended += any("an index was damaged" in one for one in warned)
    assert mended


def test_workers_of_a_job_whose_row_is_damaged_are_told(tmp_path):
    """A member's call is refused with the reason and what to do, and the job can be started again."""
    worker = stopped(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as file, file:
        file.execute("UPDATE runs SET state = '{'")
        file.execute("UPDATE copies SET content = '{'")
    with serving(ManagerService(ManagerConfig(state=tmp_path))) as address:
        worker.client = Client(_wire.BatchSizeManager, address, "manager")
        with pytest.raises(NotMemberError, match=r"'job': its state is damaged .* again from its checkpoint"):
            worker.heartbeat()
        assert Worker(address, "w").join().assignment.iteration == 0
        worker.client.close()


def test_models_that_are_damaged_are_learned_anew(tmp_path):
    """The job goes on without them, and the warning names the job and the file."""
    stopped(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as file, file:
        file.execute("UPDATE runs SET learned = ?", (b"\0",))
    with warnings() as warned:
        service = ManagerService(ManagerConfig(state=tmp_path))
    assert [managed.name for managed in service.jobs] == ["job"]
    service.stop()
    (warning,) = warned
    assert f"job job: what it has learned is damaged in {tmp_path / STATE_FILE}" in warning


def stopped(folder):
    """Return the worker of a job whose manager has stopped after an iteration."""
    with serving(ManagerService(ManagerConfig(state=folder))) as address:
        worker = Worker(address, "w")
        worker.report(worker.join().assignment)
        worker.client.close()
    return worker


def test_a_new_job_gets_nothing_of_one_whose_row_was_lost(tmp_path):
    """The new job's row may get the number that the lost one had, and neither its records nor its workers."""
    file = StateFile(tmp_path / STATE_FILE)
    file.apply([begun("r"), completed(0), Logged("r", "an event", 1.0)])
    file._connection.execute("DELETE FROM runs")
    file.apply([begun("s"), completed(5, "s")])
    assert [record.iteration for record in file.reader.records("s", 0, 9)] == [5]
    assert file.reader.last_events("s", 9) == []
    file.close()


def test_sound_records_are_found_behind_damaged_ones(tmp_path):
    """A page of which all records are damaged does not look like the history's end."""
    file = StateFile(tmp_path / STATE_FILE)
    file.apply([begun(), *map(completed, range(9))])
    file._connection.execute("UPDATE iterations SET workers = x'00' WHERE iteration < 6")
    assert [record.iteration for record in file.reader.records("r", 0, 2)] == [6, 7]
    assert file.reader.records("r", 9, 2) == []
    file.close()


@pytest.mark.parametrize("number", [None, 2**32])
def test_records_are_written_beside_a_damaged_number_of_a_worker(tmp_path, number):
    """The worker gets another number, which no other has, so that its next records can be read."""
    path = tmp_path / STATE_FILE
    file = StateFile(path)
    file.apply([begun(), completed(0)])
    if number is None:
        file._connection.execute("DELETE FROM workers WHERE number = 0")
    else:
        file._connection.execute("UPDATE workers SET number = ? WHERE number = 0", (number,))
    file.close()
    file = StateFile(path)
    assert file.apply([completed(1)]) == []
    (record,) = file.reader.records("r", 0, 9)
    assert (record.iteration, record.workers) == (1, ("w0", "w1"))
    file.close()
