"""A worker's parameters at the parameter server: flat arrays, spread over its shards.

It speaks to the shards alone, and knows neither the manager nor a framework.
"""

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

import idl
from idl.errors import (
    ConnectionLostError,
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    ProtocolError,
    RewoundError,
)
from idl.layout import Group, Layout, shard_bounds
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from idl.translation import wire_assignment, wire_groups, wire_synchronisation, wire_tensors
from rpc.client import Client
from worker.optimizer_state import OptimizerState
from worker.recovery import ShardState

log = logging.getLogger(__name__)

_wire = idl.parameter_server

# A slice that another connection brings, or others in parts: longer than a server waits for a peer that is
# silent in the middle of a message.
_APART_SECONDS = 30.0


class Shards:
    """The shards of the parameter server, as one worker uses them.

    Args:
        clients: One for each shard.
        timeout: Seconds for which the others may keep this worker waiting, or a shard may be away that this
            worker's job was opened at.
        log_fields: Gives what lines of log say beside their message.

    Attributes:
        plans_ahead: Whether this worker gets assignments before the iterations before them are complete.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        timeout: float,
        log_fields: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        self.plans_ahead = False
        self._clients = clients
        self._threads = ThreadPoolExecutor(max(1, len(clients)), "evenpace-shards")
        self._log_fields = log_fields
        self._timeout = timeout
        # Other threads have something to say while this worker waits for its parameters.
        self._aside = [client.twin() for client in clients]
        self._aside_lock = threading.Lock()
        self._identity: Any = None
        self._bounds: list[tuple[int, int]] = []  # each shard's elements, from and to
        self._attempt = 0
        self._instances: list[str | None] = [None] * len(clients)
        self._checkpoints: list[int | None] = [None] * len(clients)  # the latest of each shard

    @property
    def reconnects(self) -> int:
        """How often a connection had to be made anew; from any thread."""
        return sum(max(0, client.connections - 1) for client in (*self._clients, *self._aside))

    def identify(self, identity: Any) -> None:
        """Say who this worker is at the parameter server, as the wire has it; before anything else."""
        self._identity = identity

    def open(
        self,
        layout: Layout,
        synchronisation: Synchronisation,
        initial: NDArray[Any],
        assignment: Assignment,
        state: OptimizerState | None,
        *,
        begins: bool = True,
    ) -> None:
        """Open the job, and set its parameters if nobody has.

        Args:
            layout: The same for every worker.
            synchronisation: As the manager said.
            initial: (elements,) to start from.
            assignment: This worker's first: its iteration is the version of these parameters.
            state: The optimiser's to start from.
            begins: Whether nothing can have been trained before this assignment.

        Raises:
            InvalidRequestError: The parameter server refuses, or has lost the job's parameters; or other
                workers' models differ.
            RewoundError: A shard is in another attempt than the assignment, or was started again.
        """
        shards = len(self._clients)
        if layout.elements < shards:
            raise InvalidRequestError(f"{layout.elements} parameters cannot be spread over {shards} shards")
        self._bounds = shard_bounds(layout.elements, shards)
        self._attempt = assignment.attempt
        replies = self._on_all(
            "open",
            [
                _wire.OpenRequest(
                    identity=self._identity,
                    dtype=layout.dtype,
                    optimizer=layout.optimizer,
                    groups=wire_groups(layout.groups, bounds),
                    synchronisation=wire_synchronisation(synchronisation),
                    tensors=wire_tensors(layout.tensors) or None,
                )
                for bounds in self._bounds
            ],
        )
        self._instances = [reply.instance for reply in replies]
        for client, reply in zip(self._clients, replies, strict=True):
            if not reply.initialised and not begins:
                raise _has_lost(_name(client))
            if reply.initialised and (reply.attempt or 0) != assignment.attempt:
                raise RewoundError(
                    f"{_name(client)} is in attempt {reply.attempt or 0} of the job, "
                    f"this worker in {assignment.attempt}",
                    reply.attempt or 0,
                )
            if reply.restored:
                raise RewoundError(
                    f"{_name(client)} was started again since attempt {assignment.attempt} began",
                    assignment.attempt,
                )
        # The first shard decides whose parameters hold: the others' are set by the same worker, later.
        if not replies[0].initialised and self._initialise(0, initial, assignment, state):
            self._together(
                lambda shard, wanted: self._initialise(shard, initial, assignment, state, wanted),
                range(1, shards),
            )
        for client in self._clients:
            client.set_connect_timeout(self._timeout)  # one that had to start again is worth waiting for

    def push(self, assignment: Assignment, gradient: NDArray[Any], groups: Sequence[Group] | None) -> None:
        """Send the gradient of an assignment, (elements,), and the groups if their options have changed.

        Raises:
            InvalidRequestError: A shard refuses it, or has lost the job's parameters.
            RewoundError: A shard is in another attempt, or was started again.
            UnavailableError: Others have brought the slice in part, and not the rest for long.
        """
        known = [version for version in self._checkpoints if version is not None]
        kept = min(known) if len(known) == len(self._checkpoints) else None
        part = wire_assignment(assignment)
        requests = [
            _wire.PushRequest(
                identity=self._identity,
                assignment=part,
                groups=wire_groups(groups, bounds) if groups else None,
                instance=instance,
                kept=kept,
                shared=len(self._clients) > 1 or None,
            )
            for bounds, instance in zip(self._bounds, self._instances, strict=True)
        ]
        replies = self._on_all(
            "push", requests, bulks=self._parts(gradient), unavailable_timeout=_APART_SECONDS
        )
        self._checkpoints = [reply.checkpoint for reply in replies]

    def pull(self, version: int, into: NDArray[Any], slot: str | None = None) -> float:
        """Get the parameters, or a slot of the optimiser's state, once a version is there.

        Args:
            version: That is waited for; -1 for whatever there is.
            into: (elements,) to be filled.
            slot: Of the optimiser's state; None for the parameters.

        Returns:
            Seconds for which the shards held the answer back.

        Raises:
            RewoundError: A shard is in another attempt, or was started again.
        """
        replies = self._pull(version, into, slot)
        return max(
            float(reply.waited) + client.held for reply, client in zip(replies, self._clients, strict=True)
        )

    def state(self, version: int, like: NDArray[Any]) -> OptimizerState:
        """The optimiser's state.

        Args:
            version: Of the parameters that it belongs to; -1 for whatever there is.
            like: (elements,), of the parameters' type.

        Raises:
            InvalidRequestError: The others have taken a step meanwhile.
        """
        request = _wire.StateRequest(identity=self._identity)
        replies = self._on_all("state", [request] * len(self._clients))
        slots = {name: np.empty_like(like) for name in replies[0].slots}
        for name, array in slots.items():
            there = {reply.version for reply in self._pull(version, array, name)}
            if version >= 0 and there != {version}:
                # Only one with no samples in its next batch does not keep the others from stepping.
                raise InvalidRequestError(
                    f"the optimiser's state of iteration {version} is gone: the other workers have taken a "
                    f"step in which this one had no part; save it after the next"
                )
        return OptimizerState(replies[0].steps, slots)

    def fence(self, attempt: int) -> list[ShardState]:
        """Let the shards take nothing of earlier attempts any more, and say where they stand.

        Raises:
            InvalidRequestError: A shard has lost the job.
            RewoundError: A shard is in a later attempt.
        """
        request = _wire.FenceRequest(identity=self._identity, attempt=attempt)
        try:
            replies = self._on_all("fence", [request] * len(self._clients))
        except NotMemberError as error:
            raise _has_lost(f"a shard of the parameter server ({error})") from error
        return [
            ShardState(_name(client), r.initialised, r.version, tuple(r.checkpoints), bool(r.complete))
            for client, r in zip(self._clients, replies, strict=True)
        ]

    def fence_aside(self, attempt: int) -> None:
        """The same, from any thread: whatever waits at the shards for an earlier attempt is told."""
        request = _wire.FenceRequest(identity=self._identity, attempt=attempt)
        with self._aside_lock:
            for client in self._aside:
                self._check_echo(client.call("fence", request))

    def rewind(self, attempt: int, version: int, *, anew: bool = False) -> None:
        """Let the shards go on from a version, in an attempt that was fenced for.

        Args:
            attempt: Which one.
            version: Of the parameters.
            anew: Whether they are to be set again, since not all shards have them and nothing was trained.

        Raises:
            RewoundError: A shard is in a later attempt.
        """
        request = _wire.RewindRequest(self._identity, attempt, version, anew or None)
        replies = self._on_all("rewind", [request] * len(self._clients))
        self._attempt = attempt
        self._instances = [reply.instance for reply in replies]

    def forfeit(self, slices: Sequence[Any]) -> None:
        """Tell the shards not to wait for slices whose workers have gone; from any thread."""
        for lost in slices:
            request = _wire.ForfeitRequest(
                identity=self._identity,
                iteration=lost.iteration,
                start=lost.start,
                count=lost.count,
                total=lost.total,
            )
            with self._aside_lock:
                for client in self._aside:
                    self._check_echo(client.call("forfeit", request))

    def abandon(self, error: EvenpaceError) -> None:
        """From any thread: let what is under way fail, and all later calls, with `error`."""
        for client in (*self._clients, *self._aside):
            client.abandon(error)

    def close(self) -> None:
        """Close the connections; what another thread may be calling fails."""
        self.abandon(ConnectionLostError("this worker has left"))
        self._threads.shutdown(wait=False)
        for client in (*self._clients, *self._aside):
            client.close()

    def _pull(self, version: int, into: NDArray[Any], slot: str | None) -> list[Any]:
        requests = [
            _wire.PullRequest(
                identity=self._identity,
                version=version,
                slot=slot,
                attempt=self._attempt,
                instance=instance,
                settled=not self.plans_ahead or None,
            )
            for instance in self._instances
        ]
        return self._on_all("pull", requests, intos=self._parts(into))

    def _initialise(
        self,
        shard: int,
        initial: NDArray[Any],
        assignment: Assignment,
        state: OptimizerState | None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        begin, end = self._bounds[shard]
        common = {
            "identity": self._identity,
            "version": assignment.iteration,
            "attempt": assignment.attempt,
        }
        call = self._clients[shard].call
        for slot, array in (state.slots if state else {}).items():
            request = _wire.InitialiseRequest(**common, slot=slot, steps=state.steps if state else 0)
            call("initialise", request, bulk=_bytes(array[begin:end]), wanted=wanted)
        request = _wire.InitialiseRequest(**common)
        reply = call("initialise", request, bulk=_bytes(initial[begin:end]), wanted=wanted)
        return bool(reply.accepted)

    def _on_all(
        self,
        method: str,
        requests: Sequence[Any],
        bulks: Sequence[memoryview] | None = None,
        intos: Sequence[memoryview] | None = None,
        unavailable_timeout: float = math.inf,
    ) -> list[Any]:
        """Call all shards at once; where one fails, the other calls are given up."""

        def call(shard: int, wanted: Callable[[], bool] = lambda: True) -> Any:
            client = self._clients[shard]
            client.held = 0.0
            reply = client.call(
                method,
                requests[shard],
                bulk=bulks[shard] if bulks else None,
                into=intos[shard] if intos else None,
                unavailable_timeout=unavailable_timeout,
                wanted=wanted,
            )
            self._check_echo(reply)
            return reply

        shards = range(len(self._clients))
        return [call(0)] if len(shards) == 1 else self._together(call, shards)

    def _together(self, call: Callable[[int, Callable[[], bool]], Any], shards: Sequence[int]) -> list[Any]:
        """What a call gives for each of these shards, each in a thread of its own."""
        over = threading.Event()
        calls = [self._threads.submit(call, shard, lambda: not over.is_set()) for shard in shards]
        try:
            for done in as_completed(calls):
                done.result()
        except BaseException:
            over.set()
            for shard, under_way in zip(shards, calls, strict=True):
                if not under_way.done():
                    self._clients[shard].interrupt()
            wait(calls)
            raise
        return [done.result() for done in calls]

    def _parts(self, flat: NDArray[Any]) -> list[memoryview]:
        return [_bytes(flat[begin:end]) for begin, end in self._bounds]

    def _check_echo(self, reply: Any) -> None:
        if reply.identity != self._identity:
            raise ProtocolError(f"an answer for {reply.identity}, not for {self._identity}")


def _name(client: Client) -> str:
    return f"the {client.name} at {client.address}"


def _has_lost(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} has lost this job's parameters: start each shard with `evenpace ps --state DIR`, so that it "
        f"keeps checkpoints, and start it again with the same"
    )


def _bytes(part: NDArray[Any]) -> memoryview:
    return part.data.cast("B")
