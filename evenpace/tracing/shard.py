"""A shard's spans: the handling of each gradient, and the optimiser's steps."""

import time
from typing import Any

from evenpace.tracing.ids import TraceKey, worker_path
from evenpace.tracing.tracer import Tracer
from ps.shard_job import ShardJob


class ShardTracer:
    """An observer of a shard's pushes and steps; see `ParameterServerService.observer`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def pushed(self, shard_job: ShardJob, request: Any, began: int) -> None:
        """Trace a gradient that has arrived as a whole."""
        assignment = request.assignment
        if not self._tracer.wants(assignment.iteration):
            return
        key = TraceKey(shard_job.name, assignment.iteration, shard_job.attempt)
        worker = request.identity.worker
        path = (*worker_path(worker, assignment.start), "push", self._tracer.instance)
        about = {"worker": worker, "samples": assignment.count, "bytes": shard_job.shard.layout.nbytes}
        self._tracer.span(key, path, "push handling", began, time.monotonic_ns(), about)

    def stepped(self, shard_job: ShardJob, version: int, began: int) -> None:
        """Trace a step from `version` on, which in the synchronous modes is the iteration."""
        if not shard_job.synchronisation.is_asynchronous and self._tracer.wants(version):
            key = TraceKey(shard_job.name, version, shard_job.attempt)
            self._tracer.span(key, ("step", self._tracer.instance), "step", began, time.monotonic_ns())
