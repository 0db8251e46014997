"""The processes of the lab: none stays behind, and none is signalled that has ended."""

import subprocess
import sys

import psutil

from rpc.processes import Process
from tests.services import has_ended

SERVE = """
import sys
from evenpace.local.cluster import service
with service("4", module="lab.bench.plain_transfers") as server:
    print(server.pid, flush=True)
    sys.stdin.read()
"""


def test_a_server_of_a_benchmark_ends_with_who_started_it(wait_until):
    """Even one that is not ours, and whose starter is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        server = psutil.Process(int(starter.stdout.readline()))
        starter.kill()
    wait_until(lambda: has_ended(server), "the server's end")


def test_who_has_ended_is_not_signalled(tmp_path, monkeypatch):
    """Its id may be another's by then."""
    with Process("short", [sys.executable, "-c", ""], tmp_path / "log") as process:
        process.popen.wait()
        sent = []
        monkeypatch.setattr("os.kill", lambda *what: sent.append(what))
        process.pause()
        process.resume()
    assert not sent
