"""The attack on live services: that it attacks, and that it sees harm where there is some."""

import time

import pytest
from rich.console import Console

import idl
from lab.attacks.attack import HostileConfig, run
from lab.attacks.attackers import Attackers, Tally, Target
from lab.attacks.inputs import Inputs
from lab.attacks.lurkers import Lurkers
from rpc.limits import ServerLimits
from tests.services import MemberWorker, manager_service, serving


def target(address):
    """A manager under attack."""
    definition = idl.batchsize_manager.BatchSizeManager
    sentinel = ("history", idl.batchsize_manager.HistoryRequest("mallory", 0, 1))
    return Target("manager", address, Inputs(definition, ("mallory",), "seed"), sentinel, b"x" * 2**20)


@pytest.mark.ci
def test_attack_on_live_services_does_no_harm(tmp_path):
    """All kinds of inputs are tried, and the honest job ends with the parameters of an undisturbed run."""
    config = HostileConfig(seconds=240, inputs=3000, seed=3, pace=0.01)
    figures = run(config, Console(quiet=True), tmp_path / "attack.json")

    assert figures["harms"] == {}
    assert figures["honest"]["bits_changed"] == 0
    assert figures["honest"]["iterations"] >= 3
    assert {"plausible fields", "wrong types", "random bytes", "replayed", "stolen identity"} < set(
        figures["tried"]
    )
    assert {"silent", "slow writer", "half a message", "deaf", "crowd"} < set(figures["tried"])
    assert figures["inputs"] == sum(figures["tried"].values()) >= 3000
    assert any("refused, and the connection closed" in outcomes for outcomes in figures["outcomes"].values())
    assert not list(tmp_path.glob("*.harm-*"))


def test_internal_error_is_harm():
    """A service that fails over an input is seen, with the inputs that led to it."""
    service = manager_service()

    def fail(call):
        raise ZeroDivisionError

    service._handlers["report"] = fail
    with serving(service) as address:
        attackers = Attackers([target(address)], seed=1)
        until = time.monotonic() + 240
        while not attackers.tally.harms and time.monotonic() < until:
            attackers.attack(0.05)
        attackers.close()
    harm = attackers.tally.harms["manager: report: internal error; the service's log has the details"]
    assert any(b"report" in one.data for one in harm.inputs)


def test_lurkers_come_and_are_sent_away():
    """Silent, slow and broken-off peers are cut off at the deadlines, and an honest worker goes on."""
    limits = ServerLimits(handshake_timeout=0.3, request_timeout=0.3)
    with serving(manager_service(reconnect_grace=30.0), limits) as address:
        worker = MemberWorker(address)
        lurkers = Lurkers([target(address)], tally := Tally(), seed=1)
        ended = {"silent", "slow writer", "half a message", "deaf"}
        until = time.monotonic() + 240
        while not all((kind, "the connection ended") in tally.outcomes for kind in ended):
            assert time.monotonic() < until, tally.outcomes
            lurkers.go_on(time.monotonic())
            worker.iterate()
        lurkers.close()
        worker.close()
    assert tally.tried["crowd"] >= 100
