"""Processes that are forked by a zygote: whoever asks for one sees no difference."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from rpc.processes import LISTENING
from tests import zygote

COMMAND = (sys.executable, "-m", "evenpace")


@pytest.mark.ci
@pytest.mark.parametrize(
    "arguments",
    [
        ("manager", "--help"),
        ("ps", "--listen", "nowhere"),
        ("ps", "--nonsense"),
        ("worker", "--manager", "x"),
    ],
)
def test_what_is_forked_says_and_ends_with_the_same(tmp_path, arguments):
    """Output, errors and status are those of a process that is executed."""
    ways = {"capture_output": True, "text": True, "cwd": tmp_path}
    forked = subprocess.run([*COMMAND, *arguments], check=False, **ways)
    with zygote.set_aside():
        executed = subprocess.run([*COMMAND, *arguments], check=False, **ways)
    assert vars(forked) == vars(executed)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -9)])
def test_what_is_forked_is_a_child_of_its_own(tmp_path, number, status):
    """A forked process has the folder, session and parent asked for, and ends by its own signals."""
    arguments = [*COMMAND, "manager", "--listen", "127.0.0.1:0", "--parent", str(os.getpid())]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, cwd=tmp_path, start_new_session=True) as popen:
        assert popen.stdout.readline().decode().startswith(LISTENING)
        process = psutil.Process(popen.pid)
        assert process.ppid() == os.getpid()
        assert os.getsid(popen.pid) == popen.pid
        assert process.cwd() == str(tmp_path)
        popen.send_signal(number)
        assert popen.wait(240) == status


@pytest.mark.ci
@pytest.mark.parametrize("options", [(), ("--log-format", "console", "--log-level", "info")])
def test_a_command_may_have_a_zygote_of_its_own(tmp_path, options):
    """It has imported what that has, and nothing of the other, whatever options come before the command."""
    (tmp_path / "told.py").write_text(
        "import sys; print('tests.zygote' in sys.modules, 'torch' in sys.modules)"
    )
    worker = [*COMMAND, *options, "worker", "--manager", "127.0.0.1:1", str(tmp_path / "told.py")]
    told = [subprocess.run(worker, capture_output=True, text=True, check=True).stdout]
    with zygote.installed(("evenpace.launch",), "worker"):
        told.append(subprocess.run(worker, capture_output=True, text=True, check=True).stdout)
    assert told == ["True True\n", "True False\n"]


@pytest.mark.ci
@pytest.mark.parametrize("settings", [{}, {"PYTHONOPTIMIZE": "1"}])
def test_a_process_has_the_environment_that_it_was_to_have(tmp_path, settings):
    """Variables that a starting interpreter reads have it executed; others reach what is forked."""
    (tmp_path / "told.py").write_text(
        "import os, sys; print(os.environ['TOLD'], 'tests.zygote' in sys.modules, sys.flags.optimize)"
    )
    worker = ["worker", "--manager", "127.0.0.1:1", str(tmp_path / "told.py")]
    environment = os.environ | {"TOLD": "yes"} | settings
    done = subprocess.run([*COMMAND, *worker], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["yes", str(not settings), settings.get("PYTHONOPTIMIZE", "0")]


def test_temporary_files_lie_in_the_folder_that_the_environment_names(tmp_path):
    """A forked process's TMPDIR counts, whatever its zygote has made temporary files for."""
    (tmp_path / "told.py").write_text("import tempfile; print(tempfile.gettempdir())")
    worker = ["worker", "--manager", "127.0.0.1:1", str(tmp_path / "told.py")]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([*COMMAND, *worker], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path)


@pytest.mark.slow
def test_services_on_disks_of_their_own_see_the_mounts_of_who_started_them(tmp_path, wait_until):
    """The services of `evenpace lab chaos`, which mounts disks for their state, have its mounts."""
    chaos = ["lab", "chaos", "--minutes", "5", "--workers", "1", "--shards", "1", "--faults", "disk"]
    with subprocess.Popen(
        [*COMMAND, *chaos],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as popen:
        process = psutil.Process(popen.pid)

        def services():
            """Return the mount namespaces of its processes that have sessions of their own: the services."""
            children = [child.pid for child in process.children() if os.getsid(child.pid) == child.pid]
            return [os.readlink(f"/proc/{child}/ns/mnt") for child in children]

        wait_until(lambda: popen.poll() is not None or len(services()) >= 2, "the services")
        if popen.poll() is None:
            own = os.readlink(f"/proc/{popen.pid}/ns/mnt")
            seen = set(services())
            popen.send_signal(signal.SIGINT)
        said = popen.communicate(timeout=240)[0]
    if "no file systems of our own" in said:
        pytest.skip(said.splitlines()[-1])
    assert seen == {own} != {os.readlink("/proc/self/ns/mnt")}


def test_other_commands_are_executed():
    """A command that is no module of ours gets an interpreter of its own."""
    said = "import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
