"""Services and peers that the machine or the network has stopped for a while come to no harm."""

import select
import signal
import subprocess
import sys
import time

import pytest

import idl
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.errors import InvalidRequestError
from rpc.address import Address
from rpc.client import Client
from rpc.limits import ServerLimits
from rpc.processes import LISTENING, end_process, state
from tests.services import serving

PATIENCE = 1.0  # seconds that the service below gives its peers

SERVICE = f"""
from batchsize_manager.service import ManagerConfig, ManagerService
from rpc.processes import LISTENING
from evenpace.serve import serve
from rpc.address import Address
from rpc.limits import ServerLimits
from rpc.server import Security
limits = ServerLimits(handshake_timeout={PATIENCE}, request_timeout={PATIENCE}, idle_timeout={PATIENCE})
service = ManagerService(ManagerConfig())
serve(service, Address("127.0.0.1", 0), limits, Security(), lambda a: print(LISTENING, a, sep="", flush=True))
"""


@pytest.fixture
def service():
    """Start a real process with short deadlines."""
    popen = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
    yield popen, Address.parse(popen.stdout.readline().removeprefix(LISTENING).strip())
    end_process(popen)
    popen.stdout.close()


def ask(address, **timeouts):
    """Connect to a manager, and return a question to it."""
    client = Client(idl.batchsize_manager.BatchSizeManager, address, "manager", **timeouts)
    return client, idl.batchsize_manager.HistoryRequest("nothing", 0, 1)


def test_a_service_that_was_frozen_reads_before_it_refuses(service, wait_until):
    """What peers sent while the service was frozen is read before their deadlines are checked."""
    popen, address = service
    other, question = ask(address)

    def frozen_with_a_new_peer():
        """Return the time and an accepted, silent client, or None if it had been refused by then."""
        client, _ = ask(address)
        connection = client.connect()
        with pytest.raises(InvalidRequestError, match="nothing"):
            other.call("history", question)  # so both have been accepted
        popen.send_signal(signal.SIGSTOP)
        wait_until(lambda: state(popen.pid) == "T", "the freeze")
        if not select.select([connection], [], [], 0)[0]:
            return time.monotonic(), client
        popen.send_signal(signal.SIGCONT)
        client.close()
        return None

    frozen, client = wait_until(frozen_with_a_new_peer, "a freeze in time")
    client.send("history", question, deadline=frozen + 30)
    wait_until(lambda: time.monotonic() - frozen > 2.5 * PATIENCE, "the end of all patience")
    popen.send_signal(signal.SIGCONT)
    with pytest.raises(InvalidRequestError, match="nothing"):
        client.receive(deadline=time.monotonic() + 30)
    client.close()
    other.close()


def test_a_call_that_came_too_late_is_made_again(wait_until):
    """A call on a connection whose deadline is over is repeated on a new one."""
    with serving(ManagerService(ManagerConfig()), ServerLimits(handshake_timeout=0.3)) as address:
        client, question = ask(address, call_timeout=30)
        first = client.connect()
        first.settimeout(120)
        wait_until(lambda: first.recv(1, 2), "the refusal")  # MSG_PEEK
        client._close_if_spoken = lambda: None  # as if it came after the call had been sent
        with pytest.raises(InvalidRequestError, match="nothing"):
            client.call("history", question)
        client.close()
