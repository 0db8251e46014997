"""Logs: lines that name their job, worker and iteration, and that no peer can break or flood."""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import idl
from rpc.field_log import FieldLog
from rpc.limited_log import LimitedLog
from rpc.logs import LogSetup, options_in_force
from tests.disks import fill
from tests.services import Raw, join_request, manager_service, serving
from tests.wire import answer, framed

log = logging.getLogger("tests.logs")

UNUSUAL = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="\n\r\t\x0b\x0c\x1b\x1c\x85\u2028\u2029\u202e\ud800\"'\\={} a", max_size=20),
)


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A function that configures logging, has lines logged, and returns the lines of the file."""
    root = logging.getLogger()
    file = tmp_path_factory.mktemp("logs") / "log"

    def logged(form, act, **setup):
        file.write_bytes(b"")
        made = LogSetup(form, file=file, **setup)
        act(made)
        for handler in root.handlers:
            handler.close()
        return file.read_bytes()

    with _logging_kept():
        yield logged


@contextlib.contextmanager
def _logging_kept():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


@given(text=UNUSUAL, worker=UNUSUAL, other=st.one_of(UNUSUAL, st.floats(), st.none(), st.binary()))
def test_whatever_a_name_holds_a_line_is_one_json_object(lines, text, worker, other):
    """Names and messages of any characters are read back from a line of JSON."""
    raw = lines("json", lambda setup: log.info("%s", text, extra={"worker": worker, "other": other}))
    assert raw.isascii()
    assert len(raw.decode().splitlines()) == 1
    line = json.loads(raw, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (line["event"], line["worker"], line["level"], line["logger"]) == (
        text,
        worker,
        "info",
        "tests.logs",
    )


@given(text=UNUSUAL, worker=UNUSUAL)
@example(text="", worker='\\"=')
def test_whatever_a_name_holds_a_console_line_is_one_line(lines, text, worker):
    """No name ends a line on a console, moves its cursor, or makes a field of its own."""
    raw = lines("console", lambda setup: log.info("%s", text, extra={"worker": worker, "job": "j"})).decode()
    assert raw.endswith("\n")
    assert len(raw.splitlines()) == 1
    assert raw.rstrip("\n").isprintable() or not re.search(r"[\x00-\x1f\x7f-\x9f]", raw.rstrip("\n"))
    fields = re.sub(r'"(\\.|[^"\\])*"', "", raw.rpartition(" job=j ")[2])
    assert fields.count("=") == 1


def test_times_are_utc_with_microseconds(lines):
    """A line's time is as RFC 3339 has it, in UTC, and always has its microseconds."""

    def act(setup):
        for created in (1_000_000_000.0, 1_000_000_000.5):  # no fraction: must be written, too
            record = log.makeRecord("tests.logs", logging.INFO, __file__, 1, "now", (), None)
            record.created = created
            log.handle(record)
        log.info("now")

    before = datetime.now(UTC)
    times = [json.loads(line)["timestamp"] for line in lines("json", act).splitlines()]
    assert times[:2] == ["2001-09-09T01:46:40.000000Z", "2001-09-09T01:46:40.500000Z"]
    assert before - timedelta(seconds=1) <= datetime.fromisoformat(times[2]) <= datetime.now(UTC)


def test_exceptions_are_text(lines):
    """A traceback is a member of the object, and lines of its own on a console."""

    def act(setup):
        try:
            raise ValueError("bad\x1b[2J")
        except ValueError:
            log.exception("failed")

    line = json.loads(lines("json", act))
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("ValueError: bad\x1b[2J")
    read = lines("console", act).decode()
    assert "ERROR   tests.logs: failed\nTraceback (most recent call last):\n" in read
    assert read.endswith("ValueError: bad\\x1b[2J\n")


def test_common_fields_are_in_every_line(lines):
    """The process's common fields are in every line of every thread, unless a line has its own."""

    def act(setup):
        setup.set_common_fields(lambda: {"job": "digits", "iteration": None})
        thread = threading.Thread(target=lambda: logging.getLogger("users.own").warning("mine"))
        thread.start()
        thread.join()
        log.info("another's", extra={"job": "other", "iteration": 4})

    mine, others = map(json.loads, lines("json", act).splitlines())
    assert (mine["job"], mine["logger"], "iteration" in mine) == ("digits", "users.own", False)
    assert (others["job"], others["iteration"]) == ("other", 4)


def test_levels_and_order(lines):
    """Lines below the level are not written; fields come in one order; libraries' own are left out."""

    def act(setup):
        log.info("not this")
        fields = {"iteration": 7, "worker": "w 1", "job": "j", "zone": "z", "_own": 1}
        log.warning("a %s", "b", extra=fields)

    read = lines("console", act, level="warning").decode()
    assert re.fullmatch(
        r"[\d-]{10} [\d:]{8}\.\d{3} WARNING tests\.logs: "
        r'a b job=j worker="w 1" iteration=7 zone=z\n',
        read,
    )


def test_a_log_on_a_full_disk_says_so_in_one_line(small_disk, capsys):
    """The line names the file; it comes again where the disk is full another time."""
    with _logging_kept():
        LogSetup("json", file=small_disk / "log")
        for _ in range(2):
            fill(small_disk / "ballast")
            for _ in range(20):
                log.info("x" * 1000)
            (line,) = capsys.readouterr().err.splitlines()
            assert f"the log {small_disk / 'log'} cannot be written" in line
            assert "No space left" in line
            (small_disk / "ballast").unlink()
            log.info("again")
        logging.getLogger().handlers[0].close()


def test_a_file_that_is_moved_away_is_opened_again(lines, tmp_path):
    """Lines go to a new file of the old name after a rename, as log rotation does it."""
    file = tmp_path / "own.log"

    def act(setup):
        own = LogSetup("json", file=file)
        assert own is not None
        log.info("first")
        file.rename(tmp_path / "own.log.1")
        log.info("second")

    lines("json", act)
    assert "first" in (tmp_path / "own.log.1").read_text()
    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == ["second"]


# -- the limit


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 3), st.sampled_from([logging.INFO, logging.ERROR])), min_size=1, max_size=200
    )
)
def test_lines_are_written_or_counted(steps):
    """Each line is written or counted; a level's limit is written once in each second at most.

    A second that begins within one of these may have twice as many, but never more.
    """
    now, written = 0.0, []

    class Listener(logging.Handler):
        def emit(self, record):
            written.append((now, record.levelno, record.getMessage()))

    own = logging.Logger(f"limited-{uuid.uuid4()}")
    own.addHandler(Listener())
    limited = LimitedLog(own, 3, "%d left out", clock=lambda: now)
    for seconds, level in steps:
        now += seconds
        limited(level, "%s", "line")
    now += 2.0
    limited.tick()
    for level in (logging.INFO, logging.ERROR):
        messages = [(at, text) for at, of, text in written if of == level]
        left_out = sum(int(text.split()[0]) for _, text in messages if text.endswith("left out"))
        times = [at for at, text in messages if text == "line"]
        assert len(times) + left_out == sum(of == level for _, of in steps)
        assert all(later - at >= 1.0 for at, later in zip(times, times[2 * 3 :], strict=False))


def test_a_logger_with_fields_asks_for_them_at_each_line(lines):
    """Each line has the fields of its time, and its module as the logger; one left out asks for none."""
    fields, asked = {"job": "j", "iteration": 3}, []
    one = FieldLog("a.module", lambda: asked.append(1) or dict(fields))

    def act(setup):
        one.debug("not at this level")
        one.info("a line")
        fields["iteration"] = 4
        try:
            raise ValueError("no")
        except ValueError:
            one.of("another.module").exception("%d failures", 2)

    first, second = map(json.loads, lines("json", act).splitlines())
    del first["timestamp"]
    assert first == {"level": "info", "logger": "a.module", "event": "a line", "job": "j", "iteration": 3}
    assert (second["logger"], second["event"], second["iteration"]) == ("another.module", "2 failures", 4)
    assert "ValueError: no" in second["exception"]
    assert len(asked) == 2


def test_a_crowd_does_not_fill_the_log(caplog, wait_until):
    """Workers that join and leave, each with a job of its own, cost some lines; the rest are counted."""
    caplog.set_level(logging.INFO)
    crowd = 150
    with serving(manager_service()) as address, Raw(address) as raw:
        calls = []
        for i in range(crowd):
            identity = idl.common.Identity(f"crowd-{i}", "w", uuid.uuid4().hex)
            calls.append(framed("join", join_request(identity)))
            calls.append(framed("leave", idl.batchsize_manager.LeaveRequest(identity)))
        raw.send(b"".join(calls))  # all at once, so that they come in one second however slow this machine is
        for _ in calls:
            answer(raw)

        def counted():
            told = [r for r in caplog.records if r.name.startswith("batchsize_manager")]
            left_out = sum(r.args[0] for r in told if "left out" in r.msg)
            said = [r for r in told if "left out" not in r.msg]
            return len(said) + left_out == 3 * crowd and (left_out, said)  # joined, left, ended

        left_out, said = wait_until(counted, "a line for each event, or its count")
    assert left_out > 0
    assert {r.job for r in said} <= {f"crowd-{i}" for i in range(crowd)}


# -- whole processes


SCRIPT = """
import logging
import torch
import evenpace

logging.getLogger("users.script").warning("before the training")
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = evenpace.torch.DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = evenpace.torch.distribute(torch.optim.SGD(model.parameters(), lr=0.01), loader)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    logging.getLogger("users.script").warning("a step")
"""


@pytest.mark.slow
def test_all_processes_of_a_training_log_json(tmp_path):
    """Each line of manager, shard and worker is a JSON object with the job's fields."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    name = 'w "0"={\\é}'

    def evenpace(*arguments, **options):
        return subprocess.Popen(
            [sys.executable, "-m", "evenpace", "--log-format", "json", *arguments], text=True, **options
        )

    def service(name, *arguments):
        popen = evenpace("--log-file", str(tmp_path / name), *arguments, stdout=subprocess.PIPE)
        return popen, popen.stdout.readline().split()[-1]

    manager, manager_address = service("manager", "manager", "--listen", "127.0.0.1:0")
    shard, shard_address = service("ps", "ps", "--listen", "127.0.0.1:0")
    try:
        options = ("--manager", manager_address, "--ps", shard_address, "--job", "digits", "--name", name)
        worker = evenpace("worker", *options, str(script), stderr=subprocess.PIPE, env={**os.environ})
        _, errors = worker.communicate(timeout=240)
        assert worker.returncode == 0, errors
    finally:
        for popen in (manager, shard):
            popen.terminate()
            popen.wait(timeout=120)
            popen.stdout.close()
    own = [json.loads(line) for line in errors.splitlines()]
    assert all((line["job"], line["worker"]) == ("digits", name) for line in own)
    assert [line["iteration"] for line in own if line["event"] == "a step"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert "iteration" not in next(line for line in own if line["event"] == "before the training")
    told = [json.loads(line) for line in (tmp_path / "manager").read_text().splitlines()]
    about = [line for line in told if line.get("worker") == name]
    assert [line["event"].removeprefix(f"job digits: {name} ") for line in about] == [
        "joined, for iteration 0 on",
        "left",
    ]
    assert about[-1]["iteration"] == 8
    stored = [json.loads(line) for line in (tmp_path / "ps").read_text().splitlines()]
    assert {line["run"] for line in stored if "job" in line} == {about[0]["run"]}


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
@pytest.mark.parametrize("form", ["console", "json"])
def test_how_this_process_logs_can_be_passed_on(form, level):
    """The options in force are those of the set-up; without a set-up there are none."""
    with _logging_kept():
        logging.basicConfig(force=True)
        assert options_in_force() == []
        LogSetup(form, level)
        assert options_in_force() == ["--log-format", form, "--log-level", level]
