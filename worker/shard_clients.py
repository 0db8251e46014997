"""A worker's calls to the parameter server: flat arrays of parameters, divided among its shards.

This module calls the shards alone, and knows neither the manager nor a framework.
"""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
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
from idl.gradient_norms import StepNorms
from idl.layout import UNTRAINED, Group, Layout, shard_bounds, shard_parts
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from idl.translation import (
    read_norms,
    wire_assignment,
    wire_groups,
    wire_part,
    wire_synchronisation,
    wire_tensors,
)
from rpc.client import Client
from worker.bfloat16 import round_to_bfloat16
from worker.daemon_thread import in_daemon
from worker.growing_array import GrowingArray
from worker.messages import ShardState
from worker.optimizer_state import OptimizerState

_wire = idl.parameter_server

# For a slice that other connections are sending; longer than a server waits for a peer that is silent in the
# middle of a message.
_PARTIAL_SLICE_SECONDS = 30.0
_AGAIN_SECONDS = 0.1  # after which a call that was given up is interrupted again
LEAST_EARLY_PULL = 2**20
"""Bytes of a shard's part from which on parameters are pulled early; below, a call more costs more time."""


class ShardClients:
    """One worker's clients of the parameter server's shards.

    Args:
        clients: One client for each shard, in the order that all workers have.
        timeout: Seconds for which other workers may keep this one waiting, or a shard at which the job was
            opened may be unreachable.
        push_dtype: Of the gradients as they are sent; None: as they are.

    Attributes:
        versions: Of each shard's parameters, as last pulled. Where the others have gone on without this
            worker, they are later than it has asked for, and may differ.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        timeout: float,
        push_dtype: str | None = None,
    ) -> None:
        # Whether this worker gets assignments before the iterations before them are complete.
        self.plans_ahead = False
        self.pulls_early = False  # whether it is worth while to `begin_pull`, which all shards know
        # Whether no shard has found a NaN or an infinity in the last gradient that was pushed.
        self.pushed_finite = True
        self.versions: list[int] = []
        self._clients = clients
        self._threads = ThreadPoolExecutor(max(1, len(clients)), "evenpace-shards")
        self._timeout = timeout
        self._push_dtype = push_dtype
        self._rounded: NDArray[np.uint16] | None = None  # (elements,), the bits of the last gradient's
        # For calls of other threads while this worker waits for its parameters.
        self._side_clients = [client.twin() for client in clients]
        self._side_lock = threading.Lock()
        self._pull_clients = [client.twin() for client in clients]
        self._identity: Any = None
        self._bounds: list[tuple[int, int]] = []  # each shard's elements, (begin, end)
        self._parts: list[Any] = [None] * len(clients)  # the same, as `Part`s; None until the job is opened
        self._attempt = 0
        self._instances: list[str | None] = [None] * len(clients)
        self._checkpoints: list[tuple[frozenset[int], int]] = []  # each shard's, and the last that it tried

    @property
    def number(self) -> int:
        """The number of shards."""
        return len(self._clients)

    @property
    def reconnects(self) -> int:
        """Return how often a connection was made again; may be called from any thread."""
        return sum(max(0, client.connections - 1) for client in (*self._clients, *self._side_clients))

    @property
    def instances_digest(self) -> str:
        """Return a text that differs from that of workers which rely on other shards, or on other starts."""
        instances = " ".join(instance or "" for instance in self._instances)
        return hashlib.blake2b(instances.encode(), digest_size=8).hexdigest()

    def identify(self, identity: Any) -> None:
        """Set this worker's `Identity` of common.thrift at the parameter server; before any other call."""
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
        untrained: Callable[[], NDArray[np.uint8]] | None = None,
        weights: bool = False,
    ) -> bool:
        """Open the job, and set its parameters if no other worker has.

        Args:
            layout: The parameters' layout, the same for every worker.
            synchronisation: How the workers wait for each other, as the manager answered.
            initial: Parameters to start from, (elements,).
            assignment: This worker's first assignment; its iteration is the version of these parameters.
            state: The optimiser's state to start from.
            begins: Whether nothing can have been trained before this assignment.
            untrained: Returns what the model has beside its parameters, (bytes,); None for nothing.
            weights: Whether gradients are means over something else than samples.

        Returns:
            Whether the parameters are this worker's.

        Raises:
            InvalidRequestError: The parameter server refuses, or has lost the job's parameters; or other
                workers' models differ.
            RewoundError: A shard is in another attempt than the assignment, or was started again.
        """
        shards = len(self._clients)
        if layout.elements < shards:
            raise InvalidRequestError(f"{layout.elements} parameters cannot be spread over {shards} shards")
        if self._push_dtype is not None:
            self._check_rounding(layout, synchronisation)
            self._rounded = np.zeros(layout.elements, np.uint16)
        self._bounds = shard_bounds(layout.elements, shards)
        self._parts = [wire_part(part) for part in shard_parts(layout.elements, shards)]
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
                    part=part,
                    order=layout.order or None,
                )
                for bounds, part in zip(self._bounds, self._parts, strict=True)
            ],
        )
        self._instances = [reply.instance for reply in replies]
        part_bytes = min(end - begin for begin, end in self._bounds) * initial.itemsize
        self.pulls_early = all(reply.ahead for reply in replies) and part_bytes >= LEAST_EARLY_PULL
        for client, reply in zip(self._clients, replies, strict=True):
            if self._push_dtype not in (None, *(reply.dtypes or ())):
                raise InvalidRequestError(
                    f"{_name(client)} takes no gradients in {self._push_dtype}: it is of an earlier version"
                )
            if weights and not reply.weights:
                raise InvalidRequestError(
                    f"{_name(client)} would take gradients for means over samples, whatever weight= says: it "
                    f"is of an earlier version"
                )
            if not reply.initialised and not begins:
                raise _lost_parameters(_name(client))
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
        # The first shard decides which worker's parameters are used: the same worker then sets the others'.
        beside = untrained() if untrained and replies[0].untrained and not replies[0].initialised else None
        is_first = not replies[0].initialised and self._initialise(0, initial, assignment, state, beside)
        if is_first:
            self._in_parallel(
                lambda shard, wanted: self._initialise(shard, initial, assignment, state, None, wanted),
                range(1, shards),
            )
        for client in self._clients:
            client.set_connect_timeout(self._timeout)  # from now on, wait for a shard that is restarted
        return is_first

    def push(
        self,
        assignment: Assignment,
        gradient: NDArray[Any],
        groups: Sequence[Group] | None,
        weight: float | None = None,
    ) -> StepNorms | None:
        """Push the gradient of an assignment, (elements,), and the groups if their options have changed.

        Args:
            weight: What the gradient is a mean over; None for the samples.

        Returns:
            The norms of the last step's gradients; None where a shard does not know them.

        Raises:
            InvalidRequestError: A shard refuses it, or has lost the job's parameters.
            RewoundError: A shard is in another attempt, or was restarted.
            UnavailableError: Other workers have pushed a part of the slice, and not the rest for long.
        """
        requests = self._push_requests(assignment, groups, weight)
        if self._rounded is not None:
            round_to_bfloat16(gradient, self._rounded)
        bulks = self._divided(gradient if self._rounded is None else self._rounded)
        return self._pushed(
            self._on_all("push", requests, bulks=bulks, unavailable_timeout=_PARTIAL_SLICE_SECONDS)
        )

    def begin_push(
        self,
        assignment: Assignment,
        gradient: NDArray[Any],
        groups: Sequence[Group] | None,
        weight: float | None = None,
    ) -> "GrowingPush":
        """Begin to push a gradient, (elements,), that is still being computed; see `push`.

        Until the push has been finished or given up, no other call than those from any thread may be made.
        """
        requests = self._push_requests(assignment, groups, weight)
        for request in requests:
            request.early = True
        if (rounded := self._rounded) is None:
            growing = GrowingArray(gradient, self._bounds)
        else:
            growing = GrowingArray(
                rounded,
                self._bounds,
                lambda begin, end: round_to_bfloat16(gradient[begin:end], rounded[begin:end]),
            )

        def call(shard: int, wanted: Callable[[], bool]) -> Any:
            reply = self._clients[shard].call_growing(
                "push",
                requests[shard],
                growing.part(shard),
                unavailable_timeout=_PARTIAL_SLICE_SECONDS,
                wanted=wanted,
            )
            self._check_echo(reply)
            return reply

        return GrowingPush(growing, self._in_daemons(call, self._clients), self._pushed)

    def _in_daemons(
        self, call: Callable[[int, Callable[[], bool]], Any], clients: Sequence[Client]
    ) -> "Calls":
        """Call all shards, each in a thread that does not keep the process from ending."""
        over = threading.Event()
        started = [in_daemon(call, shard, lambda: not over.is_set()) for shard in range(len(clients))]
        return Calls(over, dict(zip(started, clients, strict=True)))

    def _push_requests(
        self, assignment: Assignment, groups: Sequence[Group] | None, weight: float | None
    ) -> list[Any]:
        kept, checkpointed = common_checkpoint(self._checkpoints)
        pushed = wire_assignment(assignment)
        return [
            _wire.PushRequest(
                identity=self._identity,
                assignment=pushed,
                groups=wire_groups(groups, bounds) if groups else None,
                instance=instance,
                kept=kept,
                shared=len(self._clients) > 1 or None,
                part=part,
                checkpointed=checkpointed,
                dtype=self._push_dtype,
                weight=weight,
            )
            for bounds, instance, part in zip(self._bounds, self._instances, self._parts, strict=True)
        ]

    def _pushed(self, replies: Sequence[Any]) -> StepNorms | None:
        if all(reply.checkpointed is not None for reply in replies):
            self._checkpoints = [(frozenset(r.checkpoints or ()), r.checkpointed) for r in replies]
        self.pushed_finite = not any(reply.not_finite for reply in replies)
        return StepNorms.summed([read_norms(reply.norms) for reply in replies])

    def pull(self, version: int, into: NDArray[Any], slot: str | None = None) -> float:
        """Pull the parameters, or a slot of the optimiser's state, once a version is reached.

        Args:
            version: The version to wait for; -1 for the present one.
            into: (elements,) to be filled.
            slot: Name of a slot of the optimiser's state; None for the parameters.

        Returns:
            Seconds for which the shards held the answer back; the longest of them, and no longer than the
            call took by this worker's clock.

        Raises:
            RewoundError: A shard is in another attempt, or was restarted.
        """
        began = time.perf_counter()
        replies = self._pull(version, into, slot)
        return self._note_pulled(replies, time.perf_counter() - began)

    def begin_pull(self, version: int, into: NDArray[Any]) -> "Calls":
        """Begin to pull the parameters of a version that shards step to as they get the gradients for it.

        Other calls may be made meanwhile.

        Args:
            into: (elements,) to be filled; in use until the pull has been finished or given up.
        """
        requests, intos = self._pull_requests(version), self._divided(into)

        def call(shard: int, wanted: Callable[[], bool]) -> Any:
            requests[shard].ahead, requests[shard].settled = True, None
            reply = self._pull_clients[shard].call_once("pull", requests[shard], intos[shard], wanted)
            self._check_echo(reply)
            return reply

        return self._in_daemons(call, self._pull_clients)

    def finish_pull(self, begun: "Calls") -> None:
        """Wait for all of a pull that was begun, and raise its error if it has one.

        Who is passed over may get later versions than it has asked for, which `versions` are then.
        """
        self.versions = [int(reply.version) for reply in begun.results()]

    def confirm(self, version: int) -> float:
        """Wait until all shards have reached a version whose parameters were pulled early.

        Returns and raises as `pull` does.
        """
        began, requests = time.perf_counter(), self._pull_requests(version)
        for request in requests:
            request.has = True
        replies = self._on_all("pull", requests)
        return self._note_pulled(replies, time.perf_counter() - began)

    def _note_pulled(self, replies: Sequence[Any], took: float) -> float:
        """Note the answers to a pull; return the seconds of the call's for which shards held them back."""
        self.versions = [int(reply.version) for reply in replies]
        held = (
            float(reply.waited) + client.held for reply, client in zip(replies, self._clients, strict=True)
        )
        return min(max(held), took)  # a suspended machine's clock stands still, the shards' go on

    def state(self, version: int, like: NDArray[Any]) -> OptimizerState:
        """Pull the optimiser's state.

        Args:
            version: The version of the parameters that it belongs to; -1 for the present one.
            like: (elements,), an array of the parameters' dtype.

        Raises:
            InvalidRequestError: The shards have taken a step meanwhile.
        """
        request = _wire.StateRequest(identity=self._identity)
        replies = self._on_all("state", [request] * len(self._clients))
        slots = {name: np.empty_like(like) for name in replies[0].slots}
        for name, array in slots.items():
            versions = {reply.version for reply in self._pull(version, array, name)}
            if version >= 0 and versions != {version}:
                # A worker with samples in its next batch keeps the shards from stepping, until it is silent.
                raise InvalidRequestError(
                    f"the optimiser's state of iteration {version} is gone: this worker was silent, and the "
                    f"others have taken the step for it; save it after the next"
                )
        return OptimizerState(replies[0].steps, slots)

    def untrained(self) -> NDArray[np.uint8] | None:
        """Pull what the first worker's model has beside its parameters, (bytes,), once these are set.

        Returns:
            None if it has set nothing.

        Raises:
            RewoundError: The shard is in another attempt, or was restarted.
        """
        client, request = self._clients[0], self._pull_requests(-1, UNTRAINED)[0]
        nbytes = client.call("state", _wire.StateRequest(identity=self._identity)).untrained
        if nbytes is None:
            return None
        data = np.empty(nbytes, np.uint8)
        self._check_echo(client.call("pull", request, into=data.data))
        return data

    def fence(self, attempt: int, manager: str | None = None) -> list[ShardState]:
        """Have the shards refuse calls of earlier attempts, and return their states.

        Args:
            manager: Id of the manager's process that has begun the attempt; None if not known.

        Raises:
            InvalidRequestError: A shard has lost the job.
            RewoundError: A shard is in a later attempt, or in another process's of this number.
        """
        requests = [_wire.FenceRequest(self._identity, attempt, part, manager) for part in self._parts]
        try:
            replies = self._on_all("fence", requests)
        except NotMemberError as error:
            raise _lost_parameters(f"a shard of the parameter server ({error})") from error
        return [
            ShardState(
                _name(client),
                r.initialised,
                r.version,
                tuple(r.checkpoints),
                bool(r.complete),
                {version: (place.epoch, place.start) for version, place in (r.places or {}).items()},
            )
            for client, r in zip(self._clients, replies, strict=True)
        ]

    def fence_from_any_thread(self, attempt: int) -> None:
        """Fence the shards from any thread; calls of an earlier attempt that wait there fail."""
        with self._side_lock:
            for client, part in zip(self._side_clients, self._parts, strict=True):
                request = _wire.FenceRequest(self._identity, attempt, part)
                self._check_echo(client.call("fence", request))

    def rewind(self, attempt: int, version: int, *, reset: bool = False) -> None:
        """Have the shards go on from a version, in an attempt that they were fenced for.

        Args:
            reset: Whether the parameters are to be set again, since some shards lack them and nothing was
                trained.

        Raises:
            RewoundError: A shard is in a later attempt.
        """
        requests = [
            _wire.RewindRequest(self._identity, attempt, version, reset or None, part) for part in self._parts
        ]
        replies = self._on_all("rewind", requests)
        self._attempt = attempt
        self._checkpoints = []  # later ones than the version are gone
        self._instances = [reply.instance for reply in replies]

    def forfeit(self, slices: Sequence[Any]) -> None:
        """Tell the shards not to wait for slices whose workers have left; may be called from any thread."""
        for lost in slices:
            request = _wire.ForfeitRequest(
                identity=self._identity,
                iteration=lost.iteration,
                start=lost.start,
                count=lost.count,
                total=lost.total,
            )
            with self._side_lock:
                for client in self._side_clients:
                    self._check_echo(client.call("forfeit", request))

    def abandon(self, error: EvenpaceError) -> None:
        """Make calls in progress and all later ones fail with `error`; may be called from any thread."""
        for client in (*self._clients, *self._side_clients, *self._pull_clients):
            client.abandon(error)

    def close(self) -> None:
        """Close the connections; calls of other threads fail."""
        self.abandon(ConnectionLostError("this worker has left"))
        self._threads.shutdown(wait=False)
        for client in (*self._clients, *self._side_clients, *self._pull_clients):
            client.close()

    def _pull(self, version: int, into: NDArray[Any], slot: str | None) -> list[Any]:
        return self._on_all("pull", self._pull_requests(version, slot), intos=self._divided(into))

    def _pull_requests(self, version: int, slot: str | None = None) -> list[Any]:
        return [
            _wire.PullRequest(
                identity=self._identity,
                version=version,
                slot=slot,
                attempt=self._attempt,
                instance=instance,
                settled=not self.plans_ahead or None,
                part=part,
            )
            for instance, part in zip(self._instances, self._parts, strict=True)
        ]

    def _initialise(
        self,
        shard: int,
        initial: NDArray[Any],
        assignment: Assignment,
        state: OptimizerState | None,
        beside: NDArray[np.uint8] | None = None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> bool:
        begin, end = self._bounds[shard]
        common = {
            "identity": self._identity,
            "version": assignment.iteration,
            "attempt": assignment.attempt,
            "part": self._parts[shard],
        }
        client = self._clients[shard]

        def call(request: Any, bulk: memoryview) -> Any:
            try:
                return client.call("initialise", request, bulk=bulk, wanted=wanted)
            except NotMemberError as error:  # it had nothing of the job on its disk yet
                raise RewoundError(
                    f"{_name(client)} was started again before it had parameters", assignment.attempt
                ) from error

        for slot, array in (state.slots if state else {}).items():
            steps = state.steps if state else 0
            call(_wire.InitialiseRequest(**common, slot=slot, steps=steps), _bytes(array[begin:end]))
        if beside is not None:
            call(_wire.InitialiseRequest(**common, slot=UNTRAINED), beside.data)
        return bool(call(_wire.InitialiseRequest(**common), _bytes(initial[begin:end])).accepted)

    def _on_all(
        self,
        method: str,
        requests: Sequence[Any],
        bulks: Sequence[memoryview] | None = None,
        intos: Sequence[memoryview] | None = None,
        unavailable_timeout: float = math.inf,
    ) -> list[Any]:
        """Call all shards at once, and return their answers; if one call fails, give up the others."""

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
        return [call(0)] if len(shards) == 1 else self._in_parallel(call, shards)

    def _in_parallel(
        self, call: Callable[[int, Callable[[], bool]], Any], shards: Sequence[int]
    ) -> list[Any]:
        """Return the results of a call for each of these shards, each made in a thread of its own."""
        over = threading.Event()
        calls = [self._threads.submit(call, shard, lambda: not over.is_set()) for shard in shards]
        clients = (self._clients[shard] for shard in shards)
        return Calls(over, dict(zip(calls, clients, strict=True))).results()

    def _check_rounding(self, layout: Layout, synchronisation: Synchronisation) -> None:
        """Check that gradients may be rounded before they are sent."""
        refused = f"push_dtype {self._push_dtype}: "
        if synchronisation.exact:
            raise InvalidRequestError(f"{refused}the job sums gradients exactly, without rounding")
        if any(group.statistics for group in layout.groups):
            raise InvalidRequestError(
                f"{refused}the model has running statistics, as of batch normalisation, which are pushed "
                f"with the gradient and would be rounded, too"
            )

    def _divided(self, flat: NDArray[Any]) -> list[memoryview]:
        return [_bytes(flat[begin:end]) for begin, end in self._bounds]

    def _check_echo(self, reply: Any) -> None:
        if reply.identity != self._identity:
            raise ProtocolError(f"an answer for {reply.identity}, not for {self._identity}")


class GrowingPush:
    """The push of a gradient that is being computed.

    Args:
        growing: The gradient.
        calls: The calls that push it.
        pushed: Called with the shards' answers.
    """

    def __init__(
        self,
        growing: GrowingArray,
        calls: "Calls",
        pushed: Callable[[Sequence[Any]], StepNorms | None],
    ) -> None:
        self._growing = growing
        self._calls = calls
        self._pushed = pushed

    def advance(self, ends: Sequence[int], when_sent: Callable[[], None] = lambda: None) -> None:
        """Let the gradient be sent up to these elements, one for each shard's range.

        Args:
            ends: The elements.
            when_sent: Called by any thread once all that is sent; never if a part is sent again.
        """
        self._growing.advance(ends, when_sent)

    def finish(self) -> StepNorms | None:
        """Send the rest of the gradient, which is complete; return and raise as `ShardClients.push` does."""
        self._growing.complete()
        return self._pushed(self._calls.results())

    def give_up(self, error: EvenpaceError) -> None:
        """Break the push off, so that no shard gets all of its part."""
        self._growing.give_up(error)
        self._calls.end()


class Calls:
    """Calls to several shards, each in a thread of its own.

    Args:
        over: Is set once the answers are not wanted any more.
        clients: The client of each call.
    """

    def __init__(self, over: threading.Event, clients: "Mapping[Future[Any], Client]") -> None:
        self._over = over
        self._clients = clients

    def results(self) -> list[Any]:
        """Return all answers; if one call fails, give up the others and raise its error."""
        try:
            for done in as_completed(self._clients):
                done.result()
        except BaseException:
            self.end()
            raise
        return [done.result() for done in self._clients]

    def end(self) -> None:
        """Give up all calls that are under way, and wait for their ends, which are near."""
        self._over.set()
        going = set(self._clients)
        while going:
            for call, client in self._clients.items():
                if call in going:
                    client.interrupt()
            going = wait(going, _AGAIN_SECONDS).not_done  # one that was connecting may be connected now


def common_checkpoint(shards: Sequence[tuple[AbstractSet[int], int]]) -> tuple[int | None, int]:
    """Return what each shard has to know in order to keep a checkpoint that all shards have.

    Args:
        shards: Of each shard, the versions of its checkpoints, and the last that it has written or failed to.

    Returns:
        The newest version that all have, or None; and the version up to which no other one can become so.
    """
    in_all = set.intersection(*(set(versions) for versions, _ in shards)) if shards else set()
    return max(in_all, default=None), min((tried for _, tried in shards), default=-1)


def _name(client: Client) -> str:
    return f"the {client.name} at {client.where}"


def _lost_parameters(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{name} has lost this job's parameters: start each shard with `evenpace ps --state DIR`, so that it "
        f"keeps checkpoints, and start it again with the same"
    )


def _bytes(part: NDArray[Any]) -> memoryview:
    return part.data.cast("B")
