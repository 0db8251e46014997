"""An observer of a running job that takes no part in it: its records and its parameters."""

import time
import uuid
from typing import Any

from numpy.typing import NDArray

import idl
from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from idl.layout import shard_bounds, shard_parts
from idl.records import IterationRecord
from idl.translation import wire_part
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.places import Where


class Observer:
    """A reader of a job's records, members and events at its manager, and of its parameters at the shards.

    Args:
        manager: The manager's address, or its places.
        shards: The addresses, or places, of the parameter server's shards, in the workers' order.
        credentials: A certificate, and a token of the job, where the services ask for them.
        timeout: Seconds within which the manager has to answer.

    Attributes:
        iterations: The records of all complete iterations so far, of each the one that counts.
    """

    def __init__(
        self,
        manager: Where,
        shards: tuple[Where, ...],
        job: str = "default",
        credentials: Credentials | None = None,
        timeout: float = 60.0,
    ) -> None:
        self._manager = ManagerClient(manager, credentials, timeout=timeout)
        self._shards = [
            Client(idl.parameter_server.ParameterServer, a, "parameter server", credentials=credentials)
            for a in shards
        ]
        self._job = job
        self._run: str | None = None
        self._incarnation = uuid.uuid4().hex
        self._known_events = -1  # the number of the last one
        self.iterations: list[IterationRecord] = []
        self.members: list[str] = []  # the members' names, in the order of their slices
        self.events: list[str] = []  # the job's events, in words, as far as it was seen

    def poll(self) -> bool:
        """Fetch new records; return False if there is no such job, or no longer.

        Where no member is left, the last iteration's record is there.

        Raises:
            EvenpaceError: The manager did not answer.
        """
        try:
            self._fetch_iterations()
            self._fetch_status()
            if not self.members:  # the last iteration may have ended in between
                self._fetch_iterations()
        except InvalidRequestError:
            return False
        return True

    def _fetch_status(self) -> None:
        """Fetch the members, and new events; a job that is only in the manager's state has no members."""
        try:
            status = self._manager.status(self._job, self._known_events)
        except InvalidRequestError:
            self.members = []
            return
        self.members = [member.worker for member in status.members]
        for event in status.events:
            self.events.append(event.text)
            self._known_events = event.number

    def _fetch_iterations(self) -> None:
        """Fetch new records; those that are void since the job has gone back are dropped."""
        last = self.iterations[-1] if self.iterations else None
        self._run, records = self._manager.history(self._job, last.iteration if last is not None else 0)
        if last is not None:
            if records and (records[0].iteration, records[0].attempt) == (last.iteration, last.attempt):
                del records[0]
            else:
                _, records = self._manager.history(self._job, 0)
                kept = records[0].iteration if records else 0  # the manager may have forgotten those before
                self.iterations = [record for record in self.iterations if record.iteration < kept]
        while records:
            self.iterations += records
            _, records = self._manager.history(self._job, records[-1].iteration + 1)

    def pull(self, parameters: NDArray[Any], version: int = -1, timeout: float = 30.0) -> int:
        """Fill `parameters`, (elements,), with at least this version; -1 takes the present one.

        Returns:
            The lowest version of all shards.

        Raises:
            EvenpaceError: There is no such job, or it does not reach the version in time.
        """
        identity = idl.common.Identity(f"{self._job}/{self._run}", "observer", self._incarnation)
        deadline = time.monotonic() + timeout
        versions: list[int] = []
        elements, shards = len(parameters), len(self._shards)
        for shard, (begin, end), part in zip(
            self._shards, shard_bounds(elements, shards), shard_parts(elements, shards), strict=True
        ):
            request = idl.parameter_server.PullRequest(identity, version, part=wire_part(part))
            into = parameters[begin:end].data.cast("B")
            reply = shard.call("pull", request, into=into, timeout=deadline - time.monotonic())
            versions.append(reply.version)
        return min(versions)

    def close(self) -> None:
        """Close the connections."""
        self._manager.close()
        for shard in self._shards:
            shard.close()
