"""A worker's calls to several shards."""

import contextlib
import socket
import threading
import time
import uuid
from dataclasses import replace

import numpy as np
import pytest

import idl
from idl.errors import ConnectionLostError, InvalidRequestError, RewoundError
from idl.layout import Group, Layout
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from rpc.client import _ATTEMPT_SECONDS, Client
from tests.services import serving, shard_service
from worker import shard_clients
from worker.shard_clients import ShardClients

SMALL = Layout("float32", "sgd", (Group(20, {"lr": 1.0}),))
WHOLE = Assignment(0, 0, 0, 8, 8)  # the first batch


def test_a_worker_sends_to_all_shards_at_once(monkeypatch):
    """Each of four calls is made before any is over, and the error of one is that of all."""
    call, together = Client.call, threading.Barrier(4, timeout=10.0)

    def held_up(client, *arguments, **options):
        together.wait()
        return call(client, *arguments, **options)

    parameters = np.zeros(20, np.float32)
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(serving(shard_service())) for _ in range(4)]
        clients = [Client(idl.parameter_server.ParameterServer, at, "shard") for at in addresses]
        shards = stack.enter_context(contextlib.closing(ShardClients(clients, 240.0)))
        shards.identify(idl.common.Identity("j/run", "w", uuid.uuid4().hex))
        shards.open(SMALL, Synchronisation(), parameters, WHOLE, None)
        shards.fence_from_any_thread(1)  # from now on they refuse both
        monkeypatch.setattr(Client, "call", held_up)
        with pytest.raises(RewoundError):
            shards.push(WHOLE, parameters, None)
        with pytest.raises(RewoundError):
            shards.pull(1, parameters)


def opened(addresses, stack, layout, timeout=240.0):
    """Open a job of a worker's at shards; return the worker's clients."""
    clients = [Client(idl.parameter_server.ParameterServer, at, "shard") for at in addresses]
    shards = stack.enter_context(contextlib.closing(ShardClients(clients, timeout)))
    shards.identify(idl.common.Identity("j/run", f"w{uuid.uuid4().hex}", uuid.uuid4().hex))
    parameters = np.zeros(layout.elements, np.float32)
    shards.open(layout, Synchronisation(), parameters, WHOLE, None)
    return shards


def test_elements_in_another_order_are_refused():
    """A worker whose parameters lie in another order than the job's does not get into it."""
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(serving(shard_service())) for _ in range(2)]
        opened(addresses, stack, replace(SMALL, order="a"))
        opened(addresses, stack, replace(SMALL, order="a"))
        for order in ("b", ""):
            with pytest.raises(InvalidRequestError, match=f"'a', but .* in the order '{order}'"):
                opened(addresses, stack, replace(SMALL, order=order))


@pytest.mark.parametrize("is_over", [True, False], ids=["given-up", "silent"])
def test_what_was_pushed_early_is_not_completed_by_others(wait_until, is_over):
    """It may have changed before its worker died, as by clipping: the iteration begins again without it."""
    layout = Layout("float32", "sgd", (Group(400_000, {"lr": 1.0}),))
    gradient, parameters = np.ones(400_000, np.float32), np.empty(400_000, np.float32)
    services = [shard_service() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        addresses = [stack.enter_context(serving(one)) for one in services]
        shards, other = (opened(addresses, stack, layout) for _ in range(2))
        begun = shards.begin_push(WHOLE, 5 * gradient, None)
        stack.callback(begun.give_up, RewoundError("another attempt", 0))
        begun.advance([150_000, 350_000])
        jobs = [job for one in services for job in one.jobs]
        wait_until(lambda: all(job.shard.contributors for job in jobs), "the first elements")
        if is_over:
            begun.give_up(RewoundError("another attempt", 0))
            with pytest.raises(RewoundError, match="broke off a gradient"):
                shards.push(WHOLE, gradient, None)
        with pytest.raises(RewoundError, match="broke off a gradient"):
            other.push(WHOLE, gradient, None)
        assert not any(job.shard.is_complete for job in jobs)
        other.fence(1)
        other.rewind(1, 0)
        other.push(replace(WHOLE, attempt=1), gradient, None)
        other.pull(1, parameters)
        assert [job.shard.version for job in jobs] == [1, 1]
    assert (parameters == -1.0).all()


@pytest.mark.parametrize("answers", [True, False], ids=["refused", "unanswered"])
def test_nobody_waits_for_a_shard_that_is_away_once_its_answer_is_not_wanted(answers, interrupt, wait_until):
    """With one of two shards away: by Ctrl-C in a push, and when a push that was begun is given up."""
    gradient, timeout = np.ones(20, np.float32), 12.0
    with contextlib.ExitStack() as stack:
        stays = stack.enter_context(serving(shard_service()))
        with serving(shard_service()) as goes:
            shards = opened([stays, goes], stack, SMALL, timeout)
            shards.pull(0, gradient.copy())
        if not answers:
            full = stack.enter_context(socket.create_server(goes, backlog=0))
            stack.enter_context(socket.create_connection(full.getsockname()))  # there is no room for more
        away = shards._clients[1]

        def is_away():
            return not away.is_connected and (answers or away._dialling is not None)

        def interrupt_once_away():
            wait_until(is_away, "an attempt to connect")
            interrupt()

        begun = time.monotonic()
        interrupter = threading.Thread(target=interrupt_once_away)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            shards.push(WHOLE, gradient, None)
        interrupter.join()
        push = shards.begin_push(WHOLE, gradient, None)
        wait_until(is_away, "another one")
        push.give_up(RewoundError("another attempt", 0))
        assert time.monotonic() - begun < _ATTEMPT_SECONDS, "as each attempt to connect may take"


def test_parameters_are_pulled_early(monkeypatch):
    """They are there once the version is confirmed; a pull that breaks off raises its error."""
    monkeypatch.setattr(shard_clients, "LEAST_EARLY_PULL", 0)
    gradient, parameters = np.ones(20, np.float32), np.zeros(20, np.float32)
    with contextlib.ExitStack() as stack:
        shards = opened([stack.enter_context(serving(shard_service())) for _ in range(2)], stack, SMALL)
        assert shards.pulls_early
        for version in (1, 2):
            begun = shards.begin_pull(version, parameters)
            shards.push(Assignment(version - 1, 0, 0, 8, 8), gradient, None)
            assert shards.confirm(version) >= 0
            shards.finish_pull(begun)
            assert (parameters == -version).all()
            assert shards.versions == [version, version]
        begun = shards.begin_pull(3, parameters)
        begun.end()
        with pytest.raises(ConnectionLostError):
            shards.finish_pull(begun)
        shards.push(Assignment(2, 0, 0, 8, 8), gradient, None)
        shards.pull(3, parameters)
    assert (parameters == -3).all()


@pytest.mark.parametrize(
    ("elements", "deterministic", "pulls_early"),
    [(2**19, False, True), (2**19 - 2, False, False), (2**19, True, False)],
)
def test_early_pulls_that_save_no_time_are_not_made(elements, deterministic, pulls_early):
    """Nor are those at shards that step at once; a part of a MiB is worth a call more."""
    layout = Layout("float32", "sgd", (Group(elements, {"lr": 1.0}),))
    with contextlib.ExitStack() as stack:
        services = [shard_service(deterministic=deterministic) for _ in range(2)]
        shards = opened([stack.enter_context(serving(one)) for one in services], stack, layout)
        assert shards.pulls_early == pulls_early


def test_a_worker_that_was_passed_over_knows_that_its_parameters_are_later_ones():
    """The shards have gone on from the version that it asks for."""
    gradient, parameters = np.ones(20, np.float32), np.empty(20, np.float32)
    with contextlib.ExitStack() as stack:
        shards = opened([stack.enter_context(serving(shard_service())) for _ in range(2)], stack, SMALL)
        shards.pull(0, parameters)
        assert shards.versions == [0, 0]
        shards.push(WHOLE, gradient, None)
        shards.pull(1, np.empty_like(parameters))
        shards.versions = []
        shards.pull(0, parameters)
        assert shards.versions == [1, 1]
        assert (parameters == -1).all()
        parameters[:] = 0
        begun = shards.begin_pull(0, parameters)
        shards.confirm(0)
        shards.finish_pull(begun)
        assert shards.versions == [1, 1]
        assert (parameters == -1).all()
