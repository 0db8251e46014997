"""Parameters are pulled while gradients are pushed, and the result is that of one big batch."""

import contextlib

import numpy as np
import pytest
import torch

from lab.proxy import Proxy
from tests.services import manager_service, send_back, serving, shard_service
from tests.worker.torch.test_backward_push import (
    BATCH,
    EPOCHS,
    SAMPLES,
    leave,
    train,
    train_alone,
)
from worker import shard_clients
from worker.session import Session, SessionConfig
from worker.shard_clients import ShardClients

STEPS = EPOCHS * SAMPLES // BATCH
RATE = 20e6  # bytes per second


@pytest.fixture(autouse=True)
def called(monkeypatch):
    """Pull few parameters early, too; return the calls by which versions were pulled or confirmed."""
    calls = []
    monkeypatch.setattr(shard_clients, "LEAST_EARLY_PULL", 0)
    for method in ("pull", "confirm"):
        own = getattr(ShardClients, method)

        def call(shards, version, *arguments, own=own, method=method):
            calls.append((method, version))
            return own(shards, version, *arguments)

        monkeypatch.setattr(ShardClients, method, call)
    return calls


class Links:
    """A manager and shards, behind links that can be cut, and the sessions of workers."""

    def __init__(self, workers=1, shards=2):
        self._workers, self._shards = workers, shards
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        enter = self._stack.enter_context
        self.manager = enter(serving(manager_service(self._workers)))
        self.proxy = enter(Proxy(RATE))
        shards = [enter(serving(shard_service())) for _ in range(self._shards)]
        self._addresses = [self.proxy.add(str(n), shard) for n, shard in enumerate(shards)]
        return self

    def __exit__(self, *error):
        self._stack.close()

    def session(self, name="w"):
        """Make a worker's session, which ends with the services."""
        config = SessionConfig(self.manager, self._addresses, worker=name, barrier_timeout=60)
        return self._stack.enter_context(contextlib.closing(Session(config)))

    def cut(self):
        """Reset all connections to the shards."""
        for link in self.proxy.links.values():
            self.proxy.do(link.cut)


@pytest.mark.ci
@pytest.mark.parametrize("rewinds", [False, True], ids=["cut", "cut and rewound"])
def test_connections_that_break_as_parameters_arrive(called, rewinds):
    """What was pulled early is pulled again, and the result is the same."""
    broken = []
    with Links() as links:
        session = links.session()

        def disturb(iteration):
            if iteration in (4, 9, 13) and iteration not in broken:
                broken.append(iteration)
                links.cut()
                if rewinds:
                    send_back(session, links.manager, iteration)

        parameters, attempts = train(session, before_step=disturb)
    assert broken == [4, 9, 13]
    assert max(attempts) == (3 if rewinds else 0)
    if not rewinds:
        assert [version for method, version in called if method == "pull"] == [0, 5, 10, 14]
    torch.testing.assert_close(parameters, train_alone(leave), rtol=0, atol=1e-12)


def test_parameters_arrive_before_the_step(wait_until):
    """Those whose gradients were pushed come while others are still here; the present ones stay."""
    seen, earlier = [], []
    with Links() as links:
        session = links.session()

        def look(iteration):
            server = session.exchange
            now = server.parameters.copy()
            if iteration > 3:  # the first to be pushed early has number 3
                wait_until(lambda: np.any(server._spare != earlier[-1]), "the first elements")
                np.testing.assert_array_equal(server.parameters, now)
                seen.append(iteration)
            earlier.append(now)

        parameters, _ = train(session, before_step=look)
    assert seen == list(range(4, STEPS))
    torch.testing.assert_close(parameters, train_alone(leave), rtol=0, atol=1e-12)
