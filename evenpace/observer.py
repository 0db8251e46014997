"""Watches a running job without taking part in it: what the manager recorded, and the parameters."""

import time
import uuid
from typing import Any

from numpy.typing import NDArray

import idl
from idl.errors import InvalidRequestError
from idl.layout import shard_bounds
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials

_BATCH = 200  # iterations asked for at once


def plain_record(record: Any) -> dict[str, Any]:
    """A Thrift `IterationRecord` as JSON has it, its workers by name."""
    values = dict(vars(record))
    values["workers"] = {
        part.worker: {key: value for key, value in vars(part).items() if key != "worker"}
        for part in sorted(record.workers, key=lambda part: part.worker)
    }
    return values


class Observer:
    """Reads from a job's manager and parameter server.

    Args:
        manager: The manager's address.
        shards: The parameter server's, in the workers' order.
        job: The job's name.
        credentials: A certificate, and a token of the job, where the services ask for them.

    Attributes:
        iterations: The records of all complete iterations seen so far; Thrift's `IterationRecord`.
        members: The members' names.
        events: What happened, in words.
    """

    def __init__(
        self,
        manager: Address,
        shards: tuple[Address, ...],
        job: str = "default",
        credentials: Credentials | None = None,
    ) -> None:
        self._manager = Client(
            idl.batchsize_manager.BatchSizeManager, manager, "BatchSizeManager", credentials=credentials
        )
        self._shards = [
            Client(idl.parameter_server.ParameterServer, a, "parameter server", credentials=credentials)
            for a in shards
        ]
        self._job = job
        self._run: str | None = None
        self._incarnation = uuid.uuid4().hex
        self.iterations: list[Any] = []
        self.members: list[str] = []
        self.events: list[str] = []

    def poll(self, timeout: float = 60.0) -> bool:
        """Fetch what is new; False while, or once, there is no such job.

        Args:
            timeout: Seconds within which the manager has to answer.

        Raises:
            EvenpaceError: It did not.
        """
        while True:
            first = self.iterations[-1].iteration + 1 if self.iterations else 0
            request = idl.batchsize_manager.HistoryRequest(job=self._job, first_iteration=first, limit=_BATCH)
            try:
                history = self._manager.call("history", request, timeout=timeout)
            except InvalidRequestError:
                return False
            self._run, self.members, self.events = history.run, history.members, history.events
            self.iterations += history.iterations
            if len(history.iterations) < _BATCH:
                return True

    def pull(self, parameters: NDArray[Any], version: int = -1, timeout: float = 30.0) -> int:
        """Fill `parameters`, (elements,), with at least this version; -1 takes what there is now.

        Returns:
            The lowest version that a shard gave.

        Raises:
            EvenpaceError: There is no such job, or it does not come so far in time.
        """
        identity = idl.common.Identity(f"{self._job}/{self._run}", "observer", self._incarnation)
        request = idl.parameter_server.PullRequest(identity=identity, version=version)
        deadline = time.monotonic() + timeout
        versions: list[int] = []
        for shard, (begin, end) in zip(
            self._shards, shard_bounds(len(parameters), len(self._shards)), strict=True
        ):
            into = parameters[begin:end].data.cast("B")
            reply = shard.call("pull", request, into=into, timeout=deadline - time.monotonic())
            versions.append(reply.version)
        return min(versions)

    def close(self) -> None:
        """Close the connections."""
        for client in (self._manager, *self._shards):
            client.close()
