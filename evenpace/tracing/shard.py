"""A shard's spans: what it did with each gradient, and the optimiser's steps."""

import time
from typing import Any

from evenpace.tracing.ids import TraceKey, worker_path
from evenpace.tracing.tracer import Tracer
from ps.shard_job import ShardJob


class ShardTracer:
    """Is told of what happens at a shard; see `ParameterServerService.observer`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def pushed(self, hosted: ShardJob, request: Any, began: int) -> None:
        """A gradient has come as a whole."""
        assignment = request.assignment
        if not self._tracer.wants(assignment.iteration):
            return
        key = TraceKey(hosted.name, assignment.iteration, hosted.attempt)
        worker = request.identity.worker
        path = (*worker_path(worker, assignment.start), "push", self._tracer.instance)
        about = {"worker": worker, "samples": assignment.count, "bytes": hosted.shard.layout.nbytes}
        self._tracer.span(key, path, "push handling", began, time.monotonic_ns(), about)

    def stepped(self, hosted: ShardJob, version: int, began: int) -> None:
        """The optimiser has stepped from a version on, which in the synchronous modes is the iteration."""
        if not hosted.synchronisation.asynchronous and self._tracer.wants(version):
            key = TraceKey(hosted.name, version, hosted.attempt)
            self._tracer.span(key, ("step", self._tracer.instance), "step", began, time.monotonic_ns())
