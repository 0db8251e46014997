"""A manager that is killed again and again while workers push costs the open iteration at most, each time."""

import contextlib
import random
import threading

import numpy as np
import pytest

from idl.layout import Group, Layout
from idl.plan import JobSpec
from lab.proxy import Proxy
from tests.services import restartable_manager, serving, shard_service
from worker.data.slices import Slices
from worker.session import Session, SessionConfig

ELEMENTS, RATE = 250_000, 10e6  # 2 MB, half of it to each shard at 10 MB/s: 0.1 s at least for a push
SPEC = JobSpec(40_000, 40)
NAMES = ("w0", "w1")


def train(session, stop, seen):
    """Train with steps that subtract the mean of the batch's indices until told to stop; return the end."""
    slices = Slices(SPEC.dataset_size, SPEC.total_batch_size, session)
    session.exchange.prepare(Layout("float64", "sgd", (Group(ELEMENTS, {"lr": 1.0}),)), np.zeros(ELEMENTS))
    session.start_training()
    for part in slices:
        now = part.assignment
        seen.append((now.attempt, now.iteration))
        if stop and now.iteration >= stop[0]:
            return
        session.exchange.gradient.values[:] = part.indices.mean()
        session.finish_iteration()


def check_attempts(seen, restarts):
    """Check that no attempt began more than one iteration before the latest reached before."""
    attempts, reached = {0}, 0
    for attempt, iteration in sorted(seen):
        if attempt not in attempts:
            attempts.add(attempt)
            assert iteration >= reached - 1, f"attempt {attempt} begins at {iteration}, after {reached}"
        reached = max(reached, iteration)
    assert len(attempts) > restarts // 2  # some are over before a worker has noticed the one before


@pytest.mark.simulated
@pytest.mark.parametrize("restarts", [4, pytest.param(100, marks=pytest.mark.release)])
def test_restarts_of_the_manager_cost_an_iteration_each_at_most(tmp_path, wait_until, restarts):
    """Each restart costs one iteration at most, and parameters are those of whole batches."""
    chance, stop, errors = random.Random(restarts), [], []
    seen = {name: [] for name in NAMES}
    with contextlib.ExitStack() as stack:
        options = ("--workers", "2", "--policy", "even", "--silence", "600")
        manager = stack.enter_context(restartable_manager(tmp_path / "manager", *options))
        shards = [
            stack.enter_context(serving(shard_service(state=tmp_path / str(n), checkpoint_every=1000)))
            for n in range(2)
        ]
        proxy = stack.enter_context(Proxy())
        sessions = {}
        for name in NAMES:
            links = tuple(proxy.add(f"{name}>ps-{n}", shard) for n, shard in enumerate(shards))
            config = SessionConfig(manager.address, links, worker=name)
            sessions[name] = stack.enter_context(contextlib.closing(Session(config)))
        for link in proxy.links.values():
            link.rate = RATE

        def run(name):
            try:
                train(sessions[name], stop, seen[name])
            except Exception as error:  # noqa: BLE001 - looked at below
                errors.append(error)

        threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in NAMES]
        for thread in threads:
            thread.start()

        def reached():
            return max((iteration for part in seen.values() for _, iteration in part), default=-1)

        def passed():
            return sum(link.bytes for link in proxy.links.values())

        for _ in range(restarts):
            at = reached()
            wait_until(lambda at=at: errors or reached() > at + 1, "iterations after a restart")
            # A push and a pull of both workers take four times the parameters' bytes.
            until = passed() + chance.random() * 4 * 8 * ELEMENTS
            wait_until(lambda until=until: errors or passed() >= until, "the moment")
            manager.kill()
            manager.start()
        stop.append(reached() + 5)
        for thread in threads:
            thread.join(240)
        assert not errors
        check_attempts([*seen["w0"], *seen["w1"]], restarts)
        means = np.arange(SPEC.dataset_size).reshape(-1, SPEC.total_batch_size).mean(axis=1)
        for name in NAMES:
            version = sessions[name].assignment.iteration
            np.testing.assert_allclose(sessions[name].exchange.parameters, -means[:version].sum(), rtol=1e-12)
