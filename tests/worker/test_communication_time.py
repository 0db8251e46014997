"""How long a worker transfers gradients and parameters: a part of its batch processing time, in records."""

from batchsize_manager.client import ManagerClient
from idl.plan import Assignment
from tests.worker.least_squares import Worker, services
from worker.meter import Meter

ITERATIONS = 6


def test_pushes_and_pulls_are_communication():
    """Of each iteration, both of them count, and no more than the batch processing time has."""
    phases = {}

    def observe(session):
        name = session.config.worker
        session.meter.tally.observer = lambda part, phase, began, ended: phases.setdefault(
            (name, part.iteration, phase), (ended - began) / 1e9
        )

    with services(2) as (manager, shards):
        workers = {name: Worker(manager, shards, name, ITERATIONS, observe) for name in "ab"}
        for worker in workers.values():
            worker.end()
        with ManagerClient(manager) as client:
            records = client.history("default", 1)[1]
    assert len(records) == ITERATIONS - 1
    for name, worker in workers.items():
        parts = [record.parts[name] for record in records]
        assert all(0 < part.communication_time <= part.batch_processing_time for part in parts)
        transfers = [
            phases[name, record.iteration, "push"] + phases[name, record.iteration, "pull"]
            for record in records
        ]
        waited = worker.session.meter.tally.waiting
        assert sum(part.communication_time for part in parts) >= sum(transfers) - waited
        for record, part in zip(records, parts, strict=True):
            assert part.communication_time >= phases[name, record.iteration, "push"]


def test_waiting_for_others_in_a_pull_is_no_communication():
    """What a shard held back is left out; what was not timed is not known."""
    meter, part = Meter(), Assignment(0, 0, 0, 4, 8)
    with meter.pulling(part) as waited:
        waited(1000.0)
    with meter.pushing(part):
        pass
    assert 0 < meter.take(part).communicated < 100
    assert meter.take(part).communicated is None
    meter.close()
