"""A small least-squares job without a framework, whose workers are threads, and what it must come to."""

import contextlib
import threading

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from tests.scripts import train_least_squares as problem
from tests.services import serving, shard_service
from worker.session import Session, SessionConfig

SPEC = problem.SPEC
trained_alone = problem.trained_alone


class Worker(threading.Thread):
    """A worker of a small least-squares job, in a thread of its own; no framework.

    Args:
        name: The worker's.
        iterations: After how many it leaves.
        at: Called with the session before each iteration is finished.
        barrier_timeout: Seconds.
        silence: Seconds.
        credentials: Where the services ask for them.
    """

    def __init__(
        self,
        manager,
        shards,
        name,
        iterations,
        at=lambda session: None,
        *,
        barrier_timeout=240.0,
        silence=10.0,
        credentials=None,
    ):
        super().__init__(daemon=True)
        config = SessionConfig(
            manager,
            tuple(shards),
            worker=name,
            barrier_timeout=barrier_timeout,
            silence=silence,
            credentials=credentials,
        )
        self.session = Session(config)
        self.done = []  # assignments
        self.error = None
        self._iterations = iterations
        self._at = at
        self.start()

    def run(self):
        """Train."""
        try:
            self._train()
        except Exception as error:  # noqa: BLE001 - looked at by the tests
            self.error = error
        finally:
            self.session.close()

    def end(self):
        """Wait for the end; the assignments that were done, by iteration."""
        self.join(480)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return {assignment.iteration: assignment for assignment in self.done}

    def _train(self):
        for part in problem.go_through(self.session, self._iterations, self._at):
            self.done.append(part.assignment)


@contextlib.contextmanager
def services(workers, policy="even", **job):
    """A manager and a shard in this process; the manager's address, and a list with the shard's."""
    config = ManagerConfig(policy, job=JobConfig(workers=workers, **job))
    with serving(ManagerService(config)) as manager, serving(shard_service()) as shard:
        yield manager, [shard]
