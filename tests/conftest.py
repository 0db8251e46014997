"""Fixtures and options that several tests share."""

import functools
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.internal.conjecture.providers import HypothesisProvider
from hypothesis.internal.constants_ast import Constants
from hypothesis.strategies import integers
from xdist.scheduler import LoadScopeScheduling

from lab.network import NetworkError, WorkerNetwork
from lab.workloads import generated
from rpc.address import Address
from tests import ROOT, zygote
from tests.services import MemberWorker, ShardWorker, manager_service, serving, shard_service
from tests.simulation import virtual
from tests.state_machines import CI_EXAMPLES

pytest.register_assert_rewrite("tests.worker.contract")

# How long an example takes to draw and to try is the machine's affair, and no finding. The same examples are
# drawn each time, lest a change fail by what another one has brought; `make fuzz` draws others.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    max_examples=CI_EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=10)
settings.register_profile("evenpace", settings.get_profile("ci"), max_examples=30)
settings.register_profile(
    "search", settings.get_profile("ci"), derandomize=False, print_blob=True, max_examples=10_000
)
settings.load_profile("evenpace")
_USED_SETTINGS = "_hypothesis_internal_use_settings"  # the attribute of a test
assert hasattr(settings()(given(integers())(lambda number: None)), _USED_SETTINGS)
# Hypothesis takes some numbers from the source of our modules, as far as they happen to be imported, which
# depends on the tests that the same process has run before.
assert isinstance(HypothesisProvider._local_constants, functools.cached_property)
HypothesisProvider._local_constants = property(lambda provider: Constants())


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> Iterator[None]:
    with zygote.installed():
        yield


@pytest.fixture(scope="session")
def wait_until():
    """A function that waits for a condition, and fails if it does not come about."""

    def wait(condition, what, seconds=240.0):
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
            time.sleep(0.02)
        return result

    return wait


@pytest.fixture
def interrupt():
    """A function that does to the main thread what Ctrl-C does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def needs_network():
    """Skip where no network can be made: it takes root, iproute2 and a kernel with veth, bridge and tbf."""
    try:
        with WorkerNetwork(1):
            pass
    except NetworkError as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.fixture
def disk_calls(monkeypatch, tmp_path):
    """Record the calls on the disk within `tmp_path` from now on, in order; they take effect as usual.

    A list of ("fsync", path), with the size that it has then if it is a file, ("replace", path, new path) and
    ("unlink", path).
    """
    calls = []

    def noted(name, note):
        function = getattr(os, name)

        def call(*arguments, **options):
            path, *rest = note(*arguments)
            if path.startswith(str(tmp_path)):  # threads of other tests may have files of their own
                calls.append((name, path, *rest))
            return function(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    def synced(descriptor):
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return (path,) if os.path.isdir(path) else (path, os.fstat(descriptor).st_size)

    noted("fsync", synced)
    noted("replace", lambda old, new: (os.fsdecode(old), os.fsdecode(new)))
    noted("unlink", lambda path: (os.fsdecode(path),))
    return calls


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def manager() -> Iterator[Address]:
    """A manager for all tests that can share one."""
    with serving(manager_service(reconnect_grace=30.0)) as address:
        yield address


@pytest.fixture(scope="module")
def shard() -> Iterator[Address]:
    """A shard for all tests that can share one."""
    with serving(shard_service()) as address:
        yield address


_generated = functools.cache(generated.sparse)  # drawing them takes more than a second


@pytest.fixture
def generated_once(monkeypatch):
    """Let workloads that are given no file share the samples that are generated for them."""
    monkeypatch.setattr(generated, "sparse", _generated)


@pytest.fixture
def member(manager) -> Iterator[MemberWorker]:
    """Has reported an iteration; the tests see whether it can go on."""
    worker = MemberWorker(manager)
    worker.iterate()
    yield worker
    worker.close()


@pytest.fixture
def pusher(shard) -> Iterator[ShardWorker]:
    """Has pushed an iteration; the tests see whether it can go on."""
    worker = ShardWorker(shard)
    worker.iterate()
    yield worker
    worker.close()


@pytest.fixture(scope="session", autouse=True)
def time_to_start() -> Iterator[None]:
    """Give a service enough time to listen on a busy machine, as the waits of tests do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rpc.processes._START_SECONDS", 240.0)
        yield


@pytest.fixture(scope="module")
def time_to_close() -> Iterator[None]:
    """Give a manager's store enough time to write all that was put when it is closed, on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("batchsize_manager.storage.state_writer._CLOSE_SECONDS", 240.0)
        yield


# Why a test may be skipped where all tools are there: no set-up of CI's could help it.
BEYOND_SET_UP = (
    r"needs (the \w+ files in )?\.\./shared/data",  # it lies beside the project, or not
    r"no control group can be made here|no writable control group|no network namespaces? (can be made )?here",
    r"no CUDA device",
)


def pytest_addoption(parser):
    """Options of our own."""
    parser.addoption(
        "--real", action="store_true", help="run what is marked `simulated` with real processes and sockets"
    )
    parser.addoption(
        "--all-tools",
        type=Path,
        metavar="FILE",
        help="fail where a test is skipped for want of something that can be installed; add the skips to "
        "FILE, and tell all that it has",
    )


def pytest_collection_modifyitems(items):
    """Begin with the tests that take long, lest one process be left alone with them in the end.

    The numbers of examples that tests name are those of CI: other profiles try fewer.
    """
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("slow", "ci", "release"))))
    usual = settings.default.max_examples
    for function in {getattr(item, "function", None) for item in items} if usual < CI_EXAMPLES else ():
        if (own := getattr(function, _USED_SETTINGS, None)) is not None and own.max_examples > usual:
            setattr(function, _USED_SETTINGS, settings(own, max_examples=usual))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run what is marked `simulated` in a world of its own, unless all is to be real."""
    if pyfuncitem.get_closest_marker("simulated") is None or pyfuncitem.config.getoption("--real"):
        return None
    virtual.run(pyfuncitem)
    return True


class _Scheduling(LoadScopeScheduling):
    """Spreads tests over processes one by one, but keeps those of a file together that share a fixture."""

    def _split_scope(self, nodeid):
        path = nodeid.partition("::")[0]
        return path if _has_shared_fixture(path) else nodeid


@functools.cache
def _has_shared_fixture(path):
    return 'fixture(scope="module")' in (ROOT / path).read_text()


def pytest_xdist_make_scheduler(config, log):
    """Give pytest-xdist our way to spread tests."""
    return _Scheduling(config, log)


def pytest_sessionfinish(session):
    """Fail for tools that could have been installed, with `--all-tools`."""
    if _skips(session.config, wanted=True):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """List every skip, those of earlier runs too, with `--all-tools`."""
    file = config.getoption("--all-tools")
    if file is None:
        return
    with file.open("a") as stream:
        stream.writelines(f"{test}: {reason}\n" for test, reason in _skips(config))
    terminalreporter.section("all skips")
    terminalreporter.write(file.read_text() or "none\n")
    for test, reason in _skips(config, wanted=True):
        terminalreporter.write_line(f"FAILED: {test} was skipped, though it could be provided for: {reason}")


def _skips(config, *, wanted=False):
    """Tests that were skipped, and why; if `wanted`, those alone that a set-up can provide for."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("--all-tools") is None or reporter is None:
        return []
    skips = [(r.nodeid, r.longrepr[2].removeprefix("Skipped: ")) for r in reporter.stats.get("skipped", ())]
    beyond = re.compile("|".join(BEYOND_SET_UP))
    return [(test, reason) for test, reason in skips if not (wanted and beyond.search(reason))]
