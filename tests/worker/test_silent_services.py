"""Connections that go silent without being closed: calls are repeated on new ones."""

import math
import time

import pytest

import idl
from idl.errors import InvalidRequestError
from rpc.client import Client
from tests.services import join_request
from tests.worker.least_squares import Worker, services
from tests.worker.test_recovery import ITERATIONS, assert_trained, once


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [0, 2])
def test_who_waits_for_others_keeps_its_connections(lookahead, wait_until):
    """At the manager's barrier, or a shard's, services answer regularly, so that connections are kept."""
    with services(2, lookahead=lookahead, silence=60.0) as (manager, shards):
        waits = Worker(manager, shards, "w0", ITERATIONS, silence=0.5)

        def held_back():
            clients = (waits.session._membership._client, *waits.session.exchange._shards._clients)
            return max(client.held for client in clients) > 2.0  # seconds: four times the silence

        slow = once(10, lambda: wait_until(held_back, "the other to wait"))
        assert_trained([waits, Worker(manager, shards, "w1", ITERATIONS, slow)])
        assert waits.session.reconnects == 0
        assert waits.session.meter.tally.waiting >= 2.0 * bool(lookahead)


# -- what the services say


IDENTITY = idl.common.Identity("job", "w", "i")


def ask(address, definition, method, request, bulk=None):
    """Call once, and return the answer."""
    client = Client(definition, address, "service")
    try:
        client.send(method, request, bulk=bulk, deadline=time.monotonic() + 240)
        return client.receive(deadline=time.monotonic() + 240)
    finally:
        client.close()


def test_a_wait_that_is_none_is_refused():
    """A wait outside its range is refused with the allowed range, and nothing happens."""
    wire, pull = idl.batchsize_manager, idl.parameter_server.PullRequest(IDENTITY, 0)
    with services(1) as (manager, (shard,)):
        for address, definition, method, request in (
            (manager, wire.BatchSizeManager, "join", join_request(IDENTITY)),
            (manager, wire.BatchSizeManager, "report", wire.ReportRequest(IDENTITY, 0, 0.5, 0.0, 0.5, 0.5)),
            (manager, wire.BatchSizeManager, "rewind", wire.RewindRequest(IDENTITY, 1, 0)),
            (shard, idl.parameter_server.ParameterServer, "pull", pull),
        ):
            for wait in (-1.0, math.nan, math.inf, 3601.0):
                request.wait = wait
                said = rf"wait {wait}: must be a finite number from 0 to 3600"
                with pytest.raises(InvalidRequestError, match=said):
                    ask(address, definition, method, request)
        assert not ask(manager, wire.BatchSizeManager, "jobs", wire.JobsRequest()).jobs
