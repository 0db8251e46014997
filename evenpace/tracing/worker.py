"""A worker's spans: its iterations and their phases."""

from collections import Counter

from evenpace.tracing.ids import TraceKey, worker_path
from evenpace.tracing.tracer import Tracer
from idl.plan import Assignment
from worker.session import Session


class SessionTracer:
    """An observer of a session's phases; see `worker.counters.PhaseObserver`.

    An iteration that ends without a report, since the job was rewound, is not traced.
    """

    def __init__(self, tracer: Tracer, session: Session) -> None:
        self._tracer = tracer
        self._session = session
        self._assignment: Assignment | None = None
        self._phases: list[tuple[str, int, int]] = []  # name, begin and end

    def __call__(self, assignment: Assignment, phase: str, begin: int, end: int) -> None:
        """Add a phase that has ended; after the report, send the iteration's spans."""
        if not self._tracer.wants(assignment.iteration):
            return
        if assignment != self._assignment:
            self._assignment, self._phases = assignment, []
        self._phases.append((phase, begin, end))
        if phase == "report":
            self._trace(assignment)
            self._assignment = None

    def _trace(self, assignment: Assignment) -> None:
        config = self._session.config
        worker = config.worker
        key = TraceKey(f"{config.job}/{self._session.run}", assignment.iteration, assignment.attempt)
        path = worker_path(worker, assignment.start)
        begin, end = min(begin for _, begin, _ in self._phases), max(end for _, _, end in self._phases)
        about: dict[str, str | int] = {"worker": worker, "start": assignment.start}
        about["samples"] = assignment.count
        self._tracer.span(key, path, "iteration", begin, end, about)
        seen = Counter[str]()  # a micro-batch has phases of its own
        for phase, began, ended in self._phases:
            step = f"{phase} {seen[phase]}" if seen[phase] else phase
            seen[phase] += 1
            self._tracer.span(key, (*path, step), phase, began, ended, {"worker": worker})
