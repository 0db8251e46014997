"""A worker's calls to several shards."""

import contextlib
import threading
import uuid

import numpy as np
import pytest

import idl
from idl.errors import RewoundError
from idl.layout import Group, Layout
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from rpc.client import Client
from tests.services import serving, shard_service
from worker.shard_clients import ShardClients


def test_a_worker_sends_to_all_shards_at_once(monkeypatch):
    """Each of four calls is made before any is over, and the error of one is that of all."""
    call, together = Client.call, threading.Barrier(4, timeout=10.0)

    def held_up(client, *arguments, **options):
        together.wait()
        return call(client, *arguments, **options)

    layout, parameters = Layout("float32", "sgd", (Group(20, {"lr": 1.0}),)), np.zeros(20, np.float32)
    assignment = Assignment(0, 0, 0, 8, 8)
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(serving(shard_service())) for _ in range(4)]
        clients = [Client(idl.parameter_server.ParameterServer, at, "shard") for at in addresses]
        shards = stack.enter_context(contextlib.closing(ShardClients(clients, 240.0)))
        shards.identify(idl.common.Identity("j/run", "w", uuid.uuid4().hex))
        shards.open(layout, Synchronisation(), parameters, assignment, None)
        shards.fence_from_any_thread(1)  # from now on they refuse both
        monkeypatch.setattr(Client, "call", held_up)
        with pytest.raises(RewoundError):
            shards.push(assignment, parameters, None)
        with pytest.raises(RewoundError):
            shards.pull(1, parameters)
