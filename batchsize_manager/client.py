"""Client for operators: asks a manager about its jobs, and changes how they are run."""

from collections.abc import Sequence
from typing import Any, Self

import idl
from idl.bounds import Bounds
from idl.errors import EvenpaceError
from idl.records import IterationRecord
from idl.translation import read_history, wire_bounds
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.places import Where

_wire = idl.batchsize_manager

_ITERATIONS = 1000  # asked for in one call
_CONNECT_SECONDS = 30.0  # to reach a manager, over all attempts


class ManagerClient:
    """Connection to a manager, for one thread; all methods raise `EvenpaceError`.

    Args:
        manager: Where of the manager.
        credentials: A certificate, and a token of the job or of all jobs, where it asks for them.
        timeout: Seconds in which a call must be answered; the manager must be reached in as many, or in 30.
    """

    def __init__(self, manager: Where, credentials: Credentials | None = None, timeout: float = 10.0) -> None:
        self._client = Client(
            _wire.BatchSizeManager,
            manager,
            "BatchSizeManager",
            connect_timeout=min(timeout, _CONNECT_SECONDS),
            call_timeout=timeout,
            credentials=credentials,
        )

    @classmethod
    def over(cls, client: Client) -> Self:
        """Make a client that calls through a connection that there is, with its time-out."""
        made = cls.__new__(cls)
        made._client = client
        return made

    def __enter__(self) -> Self:
        """Return the client; leaving the `with` block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the connection."""
        self.close()

    def abandon(self, error: EvenpaceError) -> None:
        """Make the call in progress and all later ones fail with `error`; may be called from any thread."""
        self._client.abandon(error)

    def jobs(self, job: str | None = None) -> Any:
        """Return the manager's `JobsReply`, about one job or all."""
        return self._call("jobs", _wire.JobsRequest(job=job))

    def status(self, job: str, events_after: int = -1) -> Any:
        """Return the manager's `StatusReply` about a job, with the events numbered above `events_after`."""
        return self._call("status", _wire.StatusRequest(job=job, events_after=events_after))

    def history(
        self, job: str, first_iteration: int, limit: int = _ITERATIONS
    ) -> tuple[str, list[IterationRecord]]:
        """Return a job's run, and its complete iterations from `first_iteration` on, oldest first.

        At most `limit` are returned, and the manager may answer with fewer: call again from the last one's
        successor until there are none.
        """
        request = _wire.HistoryRequest(job=job, first_iteration=first_iteration, limit=limit)
        return read_history(self._call("history", request))

    def set_policy(
        self, job: str, policy: str, predictor: str | None = None, tolerance: float | None = None
    ) -> str:
        """Change the policy that splits a job's batches; return what was done, in words.

        The methods below return the same.
        """
        return self._control(job, balancing=_wire.Balancing(policy, predictor, tolerance))

    def set_sizer(
        self,
        job: str,
        sizer: str,
        sizes: tuple[int, int] | None = None,
        promise: float | None = None,
        similarity: float | None = None,
    ) -> str:
        """Change how the whole batch's size is chosen: the sizer, and the bounds of its choice."""
        least, most = sizes or (None, None)
        return self._control(job, sizing=_wire.Sizing(sizer, least, most, promise, similarity))

    def set_total_batch_size(self, job: str, samples: int) -> str:
        """Change the whole batch's size, over all workers, from the next iteration planned on."""
        return self._control(job, total_batch_size=samples)

    def set_bounds(self, job: str, worker: str, bounds: Bounds) -> str:
        """Change the bounds of a worker's batch size."""
        return self._control(job, worker=worker, bounds=wire_bounds(bounds))

    def drain(self, job: str, worker: str) -> str:
        """Have a worker finish the iterations that it was assigned, then release it."""
        return self._control(job, worker=worker, drain=True)

    def resize(self, job: str, workers: int, drain: Sequence[str] = ()) -> str:
        """Have a job use another number of workers: drain those that are too many, or await others.

        Those in `drain` leave first, the slowest after them.
        """
        return self._control(job, resizing=_wire.Resizing(workers, list(drain) or None))

    def remove(self, job: str, worker: str) -> str:
        """Take out a worker whose machine was given up, at once; another one may have its name."""
        return self._control(job, worker=worker, gone=True)

    def pause(self, job: str, *, keep: bool = False) -> str:
        """Plan no further iteration until `resume`; with `keep`, once a worker has written the state down."""
        return self._control(job, paused=True, keep=keep or None)

    def resume(self, job: str) -> str:
        """Plan iterations again after `pause`."""
        return self._control(job, paused=False)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _control(self, job: str, **change: Any) -> str:
        said: str = self._call("control", _wire.ControlRequest(job=job, **change)).said
        return said

    def _call(self, method: str, request: Any) -> Any:
        return self._client.call(method, request)
