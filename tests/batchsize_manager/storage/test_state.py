"""The state of a manager: the file, and the thread that writes it."""

import contextlib
import dataclasses
import itertools
import json
import math
import sqlite3
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.state import JobState, SavedMember, SavedRelease
from batchsize_manager.learning.saved_models import pack_models
from batchsize_manager.storage import state_format, state_writer
from batchsize_manager.storage.changes import (
    Begun,
    Completed,
    Ended,
    Learned,
    Logged,
    Rewound,
    Saved,
)
from batchsize_manager.storage.json_values import from_json, to_json
from batchsize_manager.storage.retention import Retention
from batchsize_manager.storage.state_file import StateFile
from batchsize_manager.storage.state_format import (
    FORMAT,
    STATE_FILE,
    StateError,
    check_values,
    seal,
)
from batchsize_manager.storage.state_reader import DamagedRun, open_state
from batchsize_manager.storage.state_writer import StateWriter
from idl.bounds import Bounds
from idl.exchange import FIXED_GROUP, FORMED_GROUP
from idl.gradient_norms import GradientNorms, StepNorms
from idl.plan import JobSpec
from idl.records import COLUMNS, IterationRecord, WorkerRecord
from ps.checkpoint_store import CheckpointStore
from tests.disks import fill

pytestmark = pytest.mark.usefixtures("time_to_close")

SPEC = JobSpec(1000, 10, seed=3)
NAMES = st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
WORKER_RECORDS = st.builds(
    WorkerRecord,
    st.integers(0, 2**48),
    *[NUMBERS] * 4,
    st.just(math.nan) | NUMBERS,
    st.just(1) | st.integers(1, 2**40),
)
NORMS = st.builds(
    lambda iteration, *own: StepNorms(iteration, GradientNorms(own[0], own[0] + 7, *own[1:])),
    *[st.integers(0, 2**48), st.integers(1, 2**48), *[NUMBERS.map(abs)] * 2],
)
BOUNDS = st.builds(
    lambda low, more, grain, at_once: Bounds(low * grain, (low + more) * grain, grain, at_once),
    *[st.integers(1, 2**20)] * 3,
    st.integers(1, 1024),
)


def state(*members, **changes):
    """Return the state of a job with members."""
    began = BatchChange(0, 0, 0, SPEC.total_batch_size)
    return dataclasses.replace(JobState(SPEC, "bsp", (began,), 10, members=members), **changes)


def begun(run="r", job="job"):
    """Return the beginning of a job."""
    return Begun(run, job, "proportional", state(), 1.0)


def record(iteration, workers=2, **changes):
    """Return a complete iteration."""
    parts = {
        f"w{i}": WorkerRecord(5, 0.5 + i, 0.25, 0.1, 0.2, math.nan if i else 3.5) for i in range(workers)
    }
    return dataclasses.replace(IterationRecord.of(iteration, 0, 10, 0.75, parts), **changes)


def completed(iteration, run="r", **changes):
    """Return a complete iteration as a change."""
    return Completed(run, record(iteration, **changes), 2.0)


def members(reader, run):
    """Return the members of a run in the file."""
    return next(saved.state.members for saved in reader.runs() if saved.run == run)


def members_in(folder, run="r"):
    """Return the members of a run in a folder's file."""
    with open_state(folder) as reader:
        return members(reader, run)


def iterations(folder, run="r"):
    """Return the numbers of the iterations in the file."""
    with open_state(folder) as reader:
        return [kept.iteration for kept in reader.records(run, 0, 10**6)]


@contextlib.contextmanager
def opened(folder, retention=None):
    """Open a writer, and close it at the end."""
    kept = StateWriter(folder, retention)
    try:
        yield kept
    finally:
        kept.close()


@pytest.fixture
def locked_file(tmp_path, monkeypatch):
    """A writer, and a connection with which a test keeps it from writing."""
    monkeypatch.setattr(state_format, "BUSY_SECONDS", 0.02)
    monkeypatch.setattr("batchsize_manager.storage.state_file.BUSY_SECONDS", 0.02)
    monkeypatch.setattr(state_writer, "_RETRY_SECONDS", 0.02)
    with opened(tmp_path) as kept:
        kept.put(begun())
        other = sqlite3.connect(tmp_path / STATE_FILE, isolation_level=None, timeout=120)
        yield kept, other
        other.close()


# -- the file


@given(st.dictionaries(NAMES, WORKER_RECORDS, max_size=20))
def test_numbers_come_back_whether_the_last_columns_are_spared_or_not(workers):
    """What a file has of a record are its values, to the last bit."""
    kept = IterationRecord.of(0, 0, 1, 1.0, workers)
    columns = b"".join(kept.column(column.name).tobytes() for column in COLUMNS)
    form = "<" + "".join(f"{len(workers)}{column.form}" for column in COLUMNS)
    assert columns == struct.pack(form, *itertools.chain(*zip(*workers.values(), strict=True)))
    for written in (kept.values, columns):
        assert check_values(written, len(workers)) == kept.values


def test_members_of_a_fixed_group_are_known_by_what_an_earlier_version_wrote():
    """It said of each that it must not be released; a job's state names the exchange now."""
    kept = dataclasses.replace(state(SavedMember("a", "i", Bounds(1, 5))), exchange=FORMED_GROUP)
    assert from_json(JobState, to_json(kept)) == kept
    text = to_json(state(SavedMember("a", "i", Bounds(1, 5), unreleasable=True)))
    earlier = json.loads(text)
    del earlier["exchange"]
    assert from_json(JobState, json.dumps(earlier)).exchange == FIXED_GROUP
    with pytest.raises(ValueError, match="exchange 'x': must be one of parameter_server, fixed_group"):
        dataclasses.replace(kept, exchange="x")


@pytest.mark.parametrize("size", [0, 8, 40, 47, 49, 57, 65, 97, 105, 112])
def test_numbers_of_another_length_are_damaged(size):
    """Of one worker there are six numbers; the last seven, which may be spared, make up to thirteen."""
    with pytest.raises(ValueError, match=f"{size} bytes of numbers for 1 workers"):
        check_values(bytes(size), 1)


RUNS = st.sampled_from("ab")
MEMBERS = st.lists(
    st.builds(
        SavedMember, NAMES, NAMES, BOUNDS, *[st.booleans()] * 2, st.just("") | NAMES, *[st.booleans()] * 2
    ),
    max_size=5,
    unique_by=lambda m: m.worker,
).map(tuple)
SIZES = st.integers(1, SPEC.dataset_size)
BATCH_CHANGES = st.builds(BatchChange, *[st.integers(0, 2**40)] * 3, SIZES)
STATES = st.builds(
    JobState,
    st.just(SPEC),
    st.sampled_from(["bsp", "asp"]),
    st.lists(BATCH_CHANGES, min_size=1, max_size=3).map(tuple),
    SIZES,
    st.booleans(),
    st.integers(0, 2**40),
    st.booleans(),
    st.none() | st.builds(Balancing, st.just("even"), st.just("ema"), st.floats(0, 0.5) | st.just(0)),
    MEMBERS,
    released=st.lists(st.builds(SavedRelease, NAMES, NAMES), max_size=3).map(tuple),
)
CHANGES = st.one_of(
    st.builds(Saved, RUNS, STATES),
    st.builds(
        lambda run, iteration, attempt, workers, norms: Completed(
            run, IterationRecord.of(iteration, 1, 10, 0.5, workers, attempt, 20, norms), 2.0
        ),
        RUNS,
        st.integers(0, 5),
        st.integers(0, 3),
        st.dictionaries(NAMES, WORKER_RECORDS, max_size=4),
        st.none() | NORMS,
    ),
    st.builds(Rewound, RUNS, st.integers(0, 5)),
    st.builds(Logged, RUNS, st.text(st.characters(exclude_categories=("Cs",))), NUMBERS),
    st.builds(Learned, RUNS, st.builds(lambda w, x: {"narx": {w: {"x": np.array([x])}}}, NAMES, NUMBERS)),
    st.builds(Ended, RUNS, NAMES, st.just(3.0)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(CHANGES, max_size=6), max_size=6), st.data())
def test_a_file_holds_what_its_changes_add_up_to(tmp_path_factory, batches, data):
    """The file holds the sum of changes to two jobs, in any transactions, however often it is reopened."""
    folder = tmp_path_factory.mktemp("state")
    expected = {run: {"records": {}, "events": [], "run": {"state": state()}} for run in "ab"}
    file = StateFile(folder / STATE_FILE)
    file.apply([begun("a", "one"), begun("b", "two")])
    for batch in batches:
        file.apply(batch)
        for change in batch:
            of = expected[change.run]
            match change:
                case Saved(_, saved):
                    latest = {_key(m): m for m in saved.members}
                    stay = [key for m in of["run"]["state"].members if (key := _key(m)) in latest]
                    members = [latest.pop(key) for key in stay]
                    of["run"]["state"] = dataclasses.replace(saved, members=(*members, *latest.values()))
                case Completed(_, kept, _):
                    of["records"][kept.iteration] = kept
                case Rewound(_, iteration):
                    of["records"] = {i: r for i, r in of["records"].items() if i < iteration}
                case Logged(_, event, _):
                    of["events"].append(event)
                case Learned(_, models):
                    of["run"]["learned"] = pack_models(models)
                case Ended(_, why, at):
                    of["run"] |= {"ended": at, "ending": why}
        if data.draw(st.booleans()):
            file.close()
            file = StateFile(folder / STATE_FILE)
    file.close()

    with open_state(folder) as reader:
        for run in reader.runs():
            of = expected[run.run]
            assert reader.records(run.run, 0, 100) == [of["records"][i] for i in sorted(of["records"])]
            assert (
                reader.records(run.run, 3, 1)
                == [of["records"][i] for i in sorted(of["records"]) if i > 2][:1]
            )
            kept = reader.records(run.run, 0, 100)
            assert all(a.workers is b.workers for a, b in itertools.pairwise(kept) if a.workers == b.workers)
            assert reader.last_records(run.run, 2) == [of["records"][i] for i in sorted(of["records"])[-2:]]
            assert [e.event for e in reader.last_events(run.run, 100)] == of["events"]
            assert {name: getattr(run, name) for name in of["run"]} == of["run"]
        assert [run.run for run in reader.unfinished()] == [
            run for run in "ab" if "ended" not in expected[run]["run"]
        ]


def _key(member):
    return member.worker, member.incarnation, member.cut_off


def test_changes_are_written_all_or_none(tmp_path):
    """A transaction for whose end the disk has no room leaves the file as before, and is taken later."""
    file = StateFile(tmp_path / STATE_FILE)
    file.apply([begun(), completed(0)])
    (pages,) = file._connection.execute("PRAGMA page_count").fetchone()
    file._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        file.apply([completed(1), begun("s"), completed(2, workers=1000)])
    assert iterations(tmp_path) == [0]
    file._connection.execute("PRAGMA max_page_count=4294967294")
    file.apply([completed(1, workers=4), begun("s")])
    file.close()

    assert iterations(tmp_path) == [0, 1]


@pytest.mark.parametrize(
    ("change", "job"),
    [
        (Rewound("unknown", 0), "run unknown"),
        (begun("r", "other"), "job other"),
        (Logged("r", "half of a pair: \ud800", 1.0), "job job"),
        (Saved("r", state(SavedMember("\ud800", "i", Bounds()), attempt=1)), "job job"),
    ],
)
def test_a_change_that_cannot_be_written_costs_itself_alone(tmp_path, wait_until, change, job):
    """It is reported once, with its job and the file; what comes with it and later is written."""
    path = tmp_path / STATE_FILE
    with opened(tmp_path) as kept:
        for one in (begun(), completed(0), begun("s"), change, completed(0, run="s"), completed(1)):
            kept.put(one)
        wait_until(lambda: path.exists() and iterations(tmp_path) == [0, 1], "what can be written")
        (notice,) = wait_until(kept.notices, "a notice")
        assert notice.startswith(job)
        assert f"{type(change).__name__} cannot be written to {path} and is left out" in notice
        kept.put(change)
        kept.put(Saved("r", state(SavedMember("a", "i", Bounds(1, 5)))))
        kept.put(completed(2, run="s"))
        wait_until(lambda: iterations(tmp_path, "s") == [0, 2], "what can be written")
        assert (kept.notices(), kept.is_behind, kept.has_ended) == ([], False, False)
        with open_state(tmp_path) as reader:
            assert [member.worker for member in members(reader, "r")] == ["a"]


@pytest.mark.parametrize("content", [b"rubbish" * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_file_that_is_none_of_ours_is_refused(tmp_path, content):
    """The error names the file and says what to do; the file stays as it is."""
    path = tmp_path / STATE_FILE
    path.write_bytes(content)
    with pytest.raises(StateError, match=rf"{path} is damaged .* move it away"):
        StateWriter(tmp_path)
    assert path.read_bytes() == content


def test_another_programs_file_is_refused(tmp_path):
    """A sound SQLite file of another program is not written to."""
    with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as other, other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(StateError, match="is not a manager's state: give --state a folder of its own"):
        StateWriter(tmp_path)


@pytest.mark.parametrize("other", [1, 99])
def test_another_format_is_refused(tmp_path, other):
    """The error names both formats and what to do, for the manager and for readers."""
    StateFile(tmp_path / STATE_FILE).close()
    with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as file:
        file.execute(f"PRAGMA user_version={other}")
    said = rf"is of format {other}, .* knows format {FORMAT} alone: run the version that wrote it, or give"
    with pytest.raises(StateError, match=said):
        StateWriter(tmp_path)
    with pytest.raises(StateError, match=said), open_state(tmp_path):
        pass


def test_a_state_that_lacks_a_later_field_has_its_default(tmp_path):
    """So a field with a default can be added; one that is unknown, or not of its type, is damage."""
    file = StateFile(tmp_path / STATE_FILE)
    file.apply([begun()])
    fields = json.loads(to_json(state()))

    def write(fields):
        sealed = seal(json.dumps(fields), "r", "job", "proportional")
        file._connection.execute("UPDATE runs SET state = ?", (sealed,))

    write({name: value for name, value in fields.items() if name != "paused"})
    assert file.reader.runs()[0].state == state()
    for wrong in ({"later": 1}, {"paused": 1}, {"batch_size": 1001}, {"attempt": -1}):
        write(fields | wrong)
        (run,) = file.reader.unfinished()
        assert isinstance(run, DamagedRun)
    file.close()


# -- the thread


def test_a_second_writer_is_refused_with_the_reason(tmp_path):
    """A second writer is refused as long as the first is open, and no longer."""
    with opened(tmp_path), pytest.raises(StateError, match=r"in use by another manager, process \d+: stop"):
        StateWriter(tmp_path)
    with opened(tmp_path):
        pass


def test_the_folder_of_a_shard_is_refused(tmp_path):
    """Also after that has ended; nothing is written there."""
    CheckpointStore(tmp_path).close()
    with pytest.raises(
        StateError, match=f"--state {tmp_path} is the folder of a shard of the parameter server"
    ):
        StateWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    """It cannot be made, or has no state to read: the error names it, or says how a state comes about."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=rf"--state {tmp_path}/file/state cannot be used"):
        StateWriter(tmp_path / "file" / "state")
    with (
        pytest.raises(StateError, match="there is no such file; a manager with --state"),
        open_state(tmp_path),
    ):
        pass


def _is_begun(folder):
    with open_state(folder) as reader:
        return reader.runs()


def test_what_waits_for_the_disk_is_bounded(locked_file, tmp_path, monkeypatch, wait_until):
    """Records beyond the bound are left out and counted; members are kept."""
    kept, other = locked_file
    monkeypatch.setattr(state_writer, "_PENDING", 300)
    wait_until(lambda: _is_begun(tmp_path), "the run in the file")
    other.execute("BEGIN IMMEDIATE")
    for i in range(150):
        kept.put(completed(i))  # of two workers, and so 3 each
        kept.put(Saved("r", state(SavedMember(f"w{i}", "i", Bounds(1, 5)))))
    wait_until(kept.notices, "a notice")
    other.execute("ROLLBACK")
    wait_until(lambda: len(iterations(tmp_path)) == 150 - kept.left_out, "the records that were kept")
    (notice,) = wait_until(kept.notices, "a notice")
    assert f"{kept.left_out} iterations' records were too many" in notice
    written = iterations(tmp_path)
    assert 50 <= len(written) <= 100
    latest = (SavedMember("w149", "i", Bounds(1, 5)),)
    wait_until(lambda: members_in(tmp_path) == latest, "the latest member")
    kept.put(completed(150))
    wait_until(lambda: iterations(tmp_path) == [*written, 150], "records are taken again")


def test_runs_that_ended_are_forgotten_in_time(tmp_path, wait_until):
    """The latest ended runs stay, and all unfinished ones; a deleted run leaves no rows."""
    now = time.time()
    with opened(tmp_path, Retention(runs=2)) as kept:
        for name in "abcdef":
            kept.put(begun(name))
            kept.put(Saved(name, state(SavedMember("w0", "i", Bounds(1, 5)))))
            kept.put(Logged(name, "hello", now))
            for i in range(700):
                kept.put(completed(i, name))
        for age, name in enumerate("abcde"):
            kept.put(Ended(name, "over", now + age))
        wait_until(lambda: _run_names(tmp_path) == ["d", "e", "f"], "old runs are forgotten")
        assert iterations(tmp_path, "e") == list(range(700))
    with opened(tmp_path, Retention(days=1)) as kept:
        kept.put(begun("g"))
        kept.put(Ended("g", "over", now - 2 * 86400))
        wait_until(lambda: _run_names(tmp_path) == ["d", "e", "f"], "the one of long ago is forgotten")
    with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as file:
        for table in ("members", "workers", "iterations", "events"):
            assert file.execute(f"SELECT count(DISTINCT run) FROM {table}").fetchone() == (3,)
        assert file.execute("PRAGMA freelist_count").fetchone() == (0,)


def test_a_running_job_is_shortened_as_it_is_written(tmp_path, wait_until):
    """The latest iterations that fit into the limit are kept without gaps, also of what comes last.

    Without a limit, all are.
    """
    with opened(tmp_path, Retention(nbytes=20_000)) as kept:
        kept.put(begun("short"))
        kept.put(completed(0, "short"))
        kept.put(begun())
        for i in range(1000):
            kept.put(completed(i))
        wait_until(lambda: iterations(tmp_path)[-1:] == [999] and _bytes(tmp_path) <= 20_000, "the latest")
        assert _bytes(tmp_path) > 15_000
        before = iterations(tmp_path)
        for i in range(1000, 2000):
            kept.put(completed(i))
    there = iterations(tmp_path)
    assert before[0] < there[0]
    assert there == list(range(there[0], 2000))
    assert iterations(tmp_path, "short") == [0]
    with opened(tmp_path, Retention(nbytes=0)) as kept:
        for i in range(2000, 3000):
            kept.put(completed(i))
    assert iterations(tmp_path) == list(range(there[0], 3000))


def test_a_running_job_keeps_its_latest_events(tmp_path):
    """Those of others stay."""
    with opened(tmp_path) as kept:
        kept.put(begun("short"))
        kept.put(Logged("short", "begins", 0.0))
        kept.put(begun("r"))
        for i in range(12_000):
            kept.put(Logged("r", f"event {i}", float(i)))
    with open_state(tmp_path) as reader:
        latest = [saved.event for saved in reader.last_events("r", 20_000)]
        assert 10_000 <= len(latest) <= 10_500
        assert latest == [f"event {i}" for i in range(12_000 - len(latest), 12_000)]
        assert [saved.event for saved in reader.last_events("short", 10)] == ["begins"]


def _bytes(folder):
    """Return the bytes of the workers' records in the file."""
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE, timeout=120)) as file:
        return file.execute("SELECT total(length(workers) + length(measured)) FROM iterations").fetchone()[0]


def _run_names(folder):
    with open_state(folder) as reader:
        return [run.run for run in reader.runs()]


def test_a_file_whose_writer_was_killed_is_opened_on_a_full_disk(small_disk):
    """Opening a file writes nothing, though a kill leaves a log and another writer is there."""
    path = small_disk / STATE_FILE
    with contextlib.closing(StateFile(path)) as killed:
        killed.apply([begun()])
        fill(small_disk / "ballast")
        with contextlib.closing(StateFile(path)) as again:
            assert [run.run for run in again.reader.runs()] == ["r"]
