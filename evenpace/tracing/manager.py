"""The manager's spans: the rounds."""

from batchsize_manager.hosted_job import HostedJob
from evenpace.tracing.ids import ROUND, TraceKey
from evenpace.tracing.tracer import Tracer


class RoundTracer:
    """Is told of every event of a job; see `ManagerService.on_event`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, hosted: HostedJob) -> None:
        """Trace the rounds that have come to their end."""
        job = hosted.job
        fresh, hosted.traced = job.recorded - hosted.traced, job.recorded
        for iteration in range(job.completed - fresh, job.completed):
            if self._tracer.wants(iteration):
                self._trace(hosted, iteration)

    def _trace(self, hosted: HostedJob, iteration: int) -> None:
        job = hosted.job
        for packed in job.packed_history(iteration, 1):
            record = packed.record
            if record.iteration != iteration:
                return
            key = TraceKey(f"{hosted.name}/{hosted.run}", iteration, record.attempt)
            end = int(job.completed_at * 1e9)
            about = {"epoch": record.epoch, "samples": record.total, "workers": len(packed.names)}
            self._tracer.span(key, ROUND, "round", end - int(record.duration * 1e9), end, about)
