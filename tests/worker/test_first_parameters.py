"""Faults of a job before its first step: while a worker sets the parameters, shard by shard, or later."""

import contextlib

import pytest

from tests.services import RestartableService, serving, shard_service
from tests.worker.least_squares import Worker
from tests.worker.test_recovery import ITERATIONS, assert_trained, in_process_manager, once
from worker.shard_clients import ShardClients


def between_shards(monkeypatch, action, before=1):
    """Set an action for the moment when a worker is about to set this shard's parameters."""
    initialise, actions = ShardClients._initialise, [action]

    def interrupted(self, shard, *arguments):
        if shard == before and actions:
            actions.pop()(self)
        return initialise(self, shard, *arguments)

    monkeypatch.setattr(ShardClients, "_initialise", interrupted)


@pytest.mark.simulated
@pytest.mark.parametrize("again", [0, 1])
def test_a_shard_that_is_started_again_before_it_has_parameters_gets_them(monkeypatch, tmp_path, again):
    """It knows nothing of the job that was opened there, and is opened again."""
    with in_process_manager(1) as manager, contextlib.ExitStack() as stack:
        shards = [
            stack.enter_context(RestartableService("ps", "--state", str(tmp_path / name))) for name in "ab"
        ]

        def restart(_):
            shards[again].kill()
            shards[again].start()

        between_shards(monkeypatch, restart, before=again)
        addresses = [shard.address for shard in shards]
        assert_trained([Worker(manager, addresses, "w0", ITERATIONS)])


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_shard_that_dies_before_the_first_step_gets_the_first_parameters_again(lookahead):
    """Workers that have pulled them set them once more, on a shard that has no checkpoint yet."""
    with (
        in_process_manager(2, lookahead=lookahead) as manager,
        serving(shard_service()) as stays,
        RestartableService("ps") as killed,
    ):

        def restart():
            killed.kill()
            killed.start()

        shards = [stays, killed.address]
        workers = [
            Worker(manager, shards, "w0", ITERATIONS, once(0, restart)),
            Worker(manager, shards, "w1", ITERATIONS),
        ]
        assert_trained(workers)
