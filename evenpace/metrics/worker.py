"""A worker's own metrics."""

from functools import partial

from evenpace.metrics.catalogue import Families
from evenpace.metrics.server import PartCollector
from worker.session import Session


def session_collector(session: Session) -> PartCollector:
    """Return a collector of a worker's metrics."""
    return PartCollector("worker", partial(_fill, session))


def _fill(session: Session, families: Families) -> None:
    config, assignment, tally = session.config, session.assignment, session.meter.tally
    families.set("session_info", 1, config.job, config.worker, session.run)
    if assignment is not None:
        families.set("session_iteration", assignment.iteration)
        families.set("session_batch_samples", assignment.count)
    families.set("session_batch_limit_samples", session.limits.maximum)
    families.set("session_iterations", tally.iterations)
    families.set("session_samples", tally.samples)
    families.set("session_pieces", tally.pieces)
    families.set("session_rewinds", tally.rewinds)
    families.set("session_reconnects", session.reconnects)
    families.fill("session_batch_processing_seconds", tally.processing)
    for phase, seconds in tally.seconds.items():
        families.set("session_phase_seconds", seconds, phase)
    families.set("session_shard_waiting_seconds", tally.waiting)
