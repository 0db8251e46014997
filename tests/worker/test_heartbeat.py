"""The thread of heartbeats ends with its worker, whatever it is busy with."""

import threading

import idl
from rpc import client as client_module
from rpc.address import Address
from rpc.client import Client
from rpc.errors import ConnectionLostError
from worker.heartbeat import Heartbeat


class Member:
    """A member that is told nothing."""

    attempt = 0
    paused = False


def test_leaving_does_not_wait_for_a_name_to_be_looked_up(monkeypatch):
    """Nobody can interrupt that; the thread ends once it is through."""
    looking, through = threading.Event(), threading.Event()

    def dial(address, seconds, contexts):
        looking.set()
        assert through.wait(240)
        raise OSError("no such name")

    monkeypatch.setattr(client_module, "dial", dial)
    client = Client(idl.batchsize_manager.BatchSizeManager, Address("nowhere", 1), "manager")
    heartbeat = Heartbeat(client, idl.common.Identity("job", "w", "i"), 1.0, Member())
    assert looking.wait(240)
    heartbeat.stop(ConnectionLostError("this worker is leaving"))
    assert heartbeat._thread.is_alive()
    through.set()
    heartbeat._thread.join(240)
    assert not heartbeat._thread.is_alive()
