"""The manager's spans: the rounds."""

from batchsize_manager.job.effects import Effects
from batchsize_manager.managed_job import ManagedJob
from evenpace.tracing.ids import ROUND, TraceKey
from evenpace.tracing.tracer import Tracer
from idl.records import IterationRecord


class RoundTracer:
    """A callback for events of jobs that traces rounds; see `ManagerService.on_event`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, managed: ManagedJob, effects: Effects) -> None:
        """Trace the rounds that have ended since the last event."""
        for record in effects.completed:
            if self._tracer.wants(record.iteration):
                self._trace(managed, record)

    def _trace(self, managed: ManagedJob, record: IterationRecord) -> None:
        key = TraceKey(f"{managed.name}/{managed.run}", record.iteration, record.attempt)
        end = int(managed.job.iterations.completed_at * 1e9)
        about = {"epoch": record.epoch, "samples": record.total, "workers": len(record.workers)}
        self._tracer.span(key, ROUND, "round", end - int(record.duration * 1e9), end, about)
