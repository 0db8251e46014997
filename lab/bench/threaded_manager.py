"""The manager as thriftpy2's TThreadedServer runs it: a thread for each worker, one lock, one condition.

It stands on the same state machine as the real manager, so the benchmark compares the servers alone.
"""

import sys
import threading
import time
from typing import Any

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import make_policy
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.translation import read_report
from lab.bench.threaded_server import serve

_wire = idl.batchsize_manager


class Handler:
    """Handler of the manager's calls, each in the thread of its connection."""

    def __init__(self, workers: int) -> None:
        self._config = JobConfig(workers=workers)
        self._job: Job | None = None
        self._changed = threading.Condition()

    def join(self, request: Any) -> Any:
        """Handle the call of the same name in batchsize_manager.thrift."""
        with self._changed:
            if self._job is None:
                spec = request.job
                job_spec = JobSpec(
                    spec.dataset_size, spec.total_batch_size, spec.seed, spec.shuffle, spec.drop_last
                )
                self._job = Job(job_spec, self._config, make_policy("proportional"))
            identity = request.identity
            self._job.join(identity.worker, identity.incarnation, Bounds(), time.monotonic())
            return self._wait(request.identity, -1)

    def report(self, request: Any) -> Any:
        """Handle the call of the same name in batchsize_manager.thrift."""
        with self._changed:
            assert self._job is not None
            identity = request.identity
            report = read_report(request)
            self._job.report(identity.worker, identity.incarnation, report, time.monotonic())
            return self._wait(identity, request.iteration)

    def _wait(self, identity: Any, reported: int) -> Any:
        assert self._job is not None
        since = time.monotonic()
        if self._job.take_effects().answer:
            self._changed.notify_all()
        while (part := self._job.next_assignment(identity.worker, identity.incarnation)) is None:
            self._changed.wait()
        return _wire.AssignmentReply(
            identity=identity,
            reported_iteration=reported,
            assignment=idl.common.Assignment(part.iteration, part.epoch, part.start, part.count, part.total),
            waited=time.monotonic() - since,
            lost=[],
            run="",
        )


if __name__ == "__main__":
    serve(_wire.BatchSizeManager, Handler(workers=int(sys.argv[1])))
