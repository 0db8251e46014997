"""A worker's session: its membership with the manager and its parameters at the parameter server.

It goes through Alg. 3 of LB-BSP and knows no framework: gradients and parameters are flat arrays. A
framework's adapter fills `gradient`, calls `finish_iteration`, and takes `parameters` from there.
"""

import itertools
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import idl
from batchsize_manager.plan import Assignment, JobSpec
from batchsize_manager.rounding import Bounds
from batchsize_manager.synchronisation import Synchronisation
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.errors import (
    ConnectionLostError,
    EvenpaceError,
    InvalidRequestError,
    ProtocolError,
    UnavailableError,
)
from worker.monitors import ResourceMonitor
from worker.timing import Stopwatch

log = logging.getLogger(__name__)

_manager = idl.batchsize_manager
_ps = idl.parameter_server

GroupOptions = tuple[int, dict[str, float]]  # a parameter group's elements and its options


def default_worker_name() -> str:
    """A name that no other worker is likely to have."""
    return f"{socket.gethostname()}-{os.getpid()}"


def shard_bounds(elements: int, shards: int) -> list[tuple[int, int]]:
    """Each shard's part of the flat parameters, from and to; as `idl/parameter_server.thrift` has it."""
    ends = [elements * shard // shards for shard in range(shards + 1)]
    return list(itertools.pairwise(ends))


@dataclass(frozen=True)
class SessionConfig:
    """Where the services are, and what this worker is.

    Attributes:
        manager: The BatchSizeManager's address.
        shards: The parameter server's shards, in the same order for every worker.
        job: The job's name.
        worker: This worker's name, unique in the job.
        bounds: What batch sizes it can take.
        connect_timeout: Seconds in which each service must be reached.
        barrier_timeout: Seconds for which the others may keep this worker waiting.
        credentials: This worker's certificate and token, where the services ask for them.

    Raises:
        ValueError: A value is not allowed.
    """

    manager: Address
    shards: tuple[Address, ...]
    job: str = "default"
    worker: str = field(default_factory=default_worker_name)
    bounds: Bounds = field(default_factory=Bounds)
    connect_timeout: float = 30.0
    barrier_timeout: float = 600.0
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        if not self.shards:
            raise ValueError("shards: at least one parameter server is needed")
        if "/" in self.job:
            raise ValueError(f"job {self.job!r}: must not contain '/'")


@dataclass(frozen=True)
class Layout:
    """How a model's parameters lie in the flat arrays.

    Attributes:
        dtype: "float32" or "float64".
        optimizer: A name in `ps.optimizers.OPTIMIZERS`.
        groups: The parameter groups in their order.
    """

    dtype: str
    optimizer: str
    groups: tuple[GroupOptions, ...]

    @property
    def elements(self) -> int:
        """How many parameters there are."""
        return sum(elements for elements, _ in self.groups)


class Session:
    """One worker's part in one job.

    Attributes:
        config: What it was made from.
        incarnation: This session's id; no other session ever has it.
        assignment: What to do in the current iteration; None before `join`.
        synchronisation: How the job's workers wait for each other, as the manager said in `join`.
        gradient: (elements,) to be filled with the batch's mean gradient before `finish_iteration`.
        parameters: (elements,) as the parameter server gave them last.
        before_training: Called once, when everything is ready for the first iteration.
        on_parameters: Called whenever `parameters` has new values.
    """

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self.incarnation = uuid.uuid4().hex
        self.assignment: Assignment | None = None
        self.synchronisation = Synchronisation()
        self.gradient: NDArray[Any] = np.empty(0)
        self.parameters: NDArray[Any] = np.empty(0)
        self.before_training: Callable[[], None] = lambda: None
        self.on_parameters: Callable[[], None] = lambda: None
        self.stopwatch = Stopwatch()
        self._monitor = ResourceMonitor()
        self._spec: JobSpec | None = None
        self._layout: Layout | None = None
        self._bounds: list[tuple[int, int]] = []  # each shard's elements, from and to
        self._lost: list[Any] = []  # what the manager said was lost before this worker came
        self._waited = 0.0  # seconds in the parameter server since the last report
        self._identity = idl.common.Identity(config.job, config.worker, self.incarnation)
        self._ps_identity = self._identity
        self._manager = Client(
            _manager.BatchSizeManager,
            config.manager,
            "BatchSizeManager",
            connect_timeout=config.connect_timeout,
            call_timeout=config.barrier_timeout,
            credentials=config.credentials,
        )
        self._shards = [
            Client(
                _ps.ParameterServer,
                address,
                "parameter server",
                connect_timeout=config.connect_timeout,
                call_timeout=config.barrier_timeout,
                credentials=config.credentials,
            )
            for address in config.shards
        ]

    @property
    def spec(self) -> JobSpec | None:
        """What is trained on, once a loader has said so."""
        return self._spec

    def declare(self, spec: JobSpec) -> None:
        """Say what is trained on.

        Raises:
            InvalidRequestError: A loader has said so before.
        """
        if self._spec is not None:
            raise InvalidRequestError(
                "this worker has an evenpace loader already; a job has one, for its training data "
                "(use the framework's own for evaluation)"
            )
        self._spec = spec

    def join(self) -> Assignment:
        """Become a member and wait for the first assignment, which comes when all workers are there.

        Raises:
            InvalidRequestError: The manager refuses, and says why.
            ConnectionLostError: It cannot be reached.
        """
        if self.assignment is not None:
            return self.assignment
        if self._spec is None:
            raise InvalidRequestError("join before a loader has said what is trained on")
        bounds = self.config.bounds
        request = _manager.JoinRequest(
            identity=self._identity,
            job=_manager.JobSpec(
                dataset_size=self._spec.dataset_size,
                total_batch_size=self._spec.total_batch_size,
                seed=self._spec.seed,
                shuffle=self._spec.shuffle,
                drop_last=self._spec.drop_last,
            ),
            bounds=_manager.Bounds(
                minimum=bounds.minimum, maximum=bounds.maximum, granularity=bounds.granularity
            ),
        )
        reply = self._manager.call("join", request)
        self._check_echo(reply.identity, self._identity)
        run = f"{self.config.job}/{reply.run}"
        self._ps_identity = idl.common.Identity(run, self.config.worker, self.incarnation)
        self.synchronisation = _synchronisation(reply.synchronisation)
        self.assignment = _assignment(reply.assignment)
        self._lost = list(reply.lost)
        return self.assignment

    def open_parameters(self, layout: Layout, initial: NDArray[Any]) -> None:
        """Open the job at the parameter server, and get the parameters to start from.

        Args:
            layout: The same for every worker.
            initial: (elements,); the job starts from those of the worker that comes first.

        Raises:
            InvalidRequestError: The parameter server refuses, or other workers' models differ.
        """
        assignment = self.join()
        shards = len(self._shards)
        if layout.elements < shards:
            raise InvalidRequestError(f"{layout.elements} parameters cannot be spread over {shards} shards")
        self._layout = layout
        self.parameters = initial
        self.gradient = np.zeros_like(initial)
        self._bounds = shard_bounds(layout.elements, shards)
        replies = self._on_all_shards(
            "open",
            [
                _ps.OpenRequest(
                    identity=self._ps_identity,
                    dtype=layout.dtype,
                    optimizer=layout.optimizer,
                    groups=self._groups(layout.groups, bounds),
                    synchronisation=self._wire_synchronisation(),
                )
                for bounds in self._bounds
            ],
        )
        request = _ps.InitialiseRequest(identity=self._ps_identity, version=assignment.iteration)
        # The first shard decides whose parameters hold: the others' are set by the same worker, later.
        if (
            not replies[0].initialised
            and self._shards[0].call("initialise", request, bulk=self._part(initial, 0)).accepted
        ):
            for i in range(1, shards):
                self._shards[i].call("initialise", request, bulk=self._part(initial, i))
        self._forfeit(self._lost)
        self._pull()
        self.before_training()
        self.stopwatch.take()
        self._monitor.resume()

    def finish_iteration(self, groups: Sequence[GroupOptions] | None = None) -> Assignment:
        """Push `gradient`, report, and pull the new `parameters` (Alg. 3, from line 5 on).

        With a count of 0 samples there is nothing to push.

        Args:
            groups: The parameter groups, if their options have changed.

        Returns:
            What to do next.

        Raises:
            NotMemberError: This worker was taken out of the job.
            InvalidRequestError: A service refuses, or the job cannot go on.
            ConnectionLostError, DeadlineExceededError: A service is away.
        """
        done = self.assignment
        if done is None or self._layout is None:
            raise InvalidRequestError("finish_iteration before the parameters are opened")
        if done.count:
            self._push(done, groups)
        self._report(done)
        self.stopwatch.start()
        self._pull()
        self.stopwatch.stop()
        self._monitor.resume()
        assert self.assignment is not None
        return self.assignment

    def close(self) -> None:
        """Leave the job and close the connections. What fails now is only logged."""
        if self.assignment is not None:
            try:
                request = _manager.LeaveRequest(identity=self._identity)
                self._manager.call("leave", request, timeout=5.0)
            except EvenpaceError as error:
                log.debug("leave: %s", error)
            self.assignment = None
        self._monitor.close()
        self._manager.close()
        for shard in self._shards:
            shard.close()

    def _push(self, assignment: Assignment, groups: Sequence[GroupOptions] | None) -> None:
        wire_assignment = idl.common.Assignment(
            assignment.iteration,
            assignment.epoch,
            assignment.start,
            assignment.count,
            assignment.total,
        )
        self._on_all_shards(
            "push",
            [
                _ps.PushRequest(
                    identity=self._ps_identity,
                    assignment=wire_assignment,
                    groups=self._groups(groups, bounds) if groups else None,
                )
                for bounds in self._bounds
            ],
            bulks=[self._part(self.gradient, i) for i in range(len(self._shards))],
        )

    def _report(self, done: Assignment) -> None:
        usage = self._monitor.sample()
        request = _manager.ReportRequest(
            identity=self._identity,
            iteration=done.iteration,
            batch_processing_time=self.stopwatch.take(),
            waiting_time=self._waited,
            cpu_usage=usage.cpu,
            memory_usage=usage.memory,
        )
        self._waited = 0.0
        reply = self._manager.call("report", request)
        self._check_echo(reply.identity, self._identity)
        if reply.reported_iteration != done.iteration:
            raise ProtocolError(
                f"the manager answered for iteration {reply.reported_iteration}, not {done.iteration}"
            )
        self._forfeit(reply.lost)
        self.assignment = _assignment(reply.assignment)

    def _forfeit(self, slices: Sequence[Any]) -> None:
        """Tell the shards not to wait for slices whose workers have gone."""
        for lost in slices:
            request = _ps.ForfeitRequest(
                identity=self._ps_identity,
                iteration=lost.iteration,
                start=lost.start,
                count=lost.count,
                total=lost.total,
            )
            self._on_all_shards("forfeit", [request] * len(self._shards))

    def _pull(self) -> None:
        """Get the parameters for the assignment: those of its iteration, or whatever there is now."""
        assert self.assignment is not None
        version = -1 if self.synchronisation.asynchronous else self.assignment.iteration
        replies = self._on_all_shards(
            "pull",
            [_ps.PullRequest(identity=self._ps_identity, version=version)] * len(self._shards),
            intos=[self._part(self.parameters, i) for i in range(len(self._shards))],
        )
        waited = max(reply.waited for reply in replies)
        self._waited += waited
        self.stopwatch.exclude(waited)
        self.on_parameters()

    def _on_all_shards(
        self,
        method: str,
        requests: Sequence[Any],
        bulks: Sequence[memoryview] | None = None,
        intos: Sequence[memoryview] | None = None,
    ) -> list[Any]:
        """Call all shards at once; then those again, each as `Client.call` does, that did not take it."""
        deadline = time.monotonic() + self.config.barrier_timeout
        sent = []
        for i, shard in enumerate(self._shards):
            try:
                shard.send(method, requests[i], bulk=bulks[i] if bulks else None, deadline=deadline)
                sent.append(True)
            except ConnectionLostError:
                sent.append(False)
        replies = []
        for i, shard in enumerate(self._shards):
            into = intos[i] if intos else None
            reply = None
            if sent[i]:
                try:
                    reply = shard.receive(into=into, deadline=deadline)
                except (ConnectionLostError, UnavailableError) as error:
                    log.warning("%s: %s; trying again", method, error)
            if reply is None:
                reply = shard.call(method, requests[i], bulk=bulks[i] if bulks else None, into=into)
            self._check_echo(reply.identity, self._ps_identity)
            replies.append(reply)
        return replies

    def _part(self, flat: NDArray[Any], shard: int) -> memoryview:
        begin, end = self._bounds[shard]
        return flat[begin:end].data.cast("B")

    def _groups(self, groups: Sequence[GroupOptions], bounds: tuple[int, int]) -> list[Any]:
        """The parts of the parameter groups that lie within a shard's bounds."""
        parts, position = [], 0
        for elements, options in groups:
            begin, end = max(bounds[0], position), min(bounds[1], position + elements)
            parts.append(_ps.ParameterGroup(elements=max(0, end - begin), options=options))
            position += elements
        return parts

    def _wire_synchronisation(self) -> Any:
        sync = self.synchronisation
        if sync.mode == "bsp":
            return None
        return idl.common.Synchronisation(sync.mode, sync.staleness, sync.replicas_to_aggregate)

    def _check_echo(self, echoed: Any, sent: Any) -> None:
        if echoed != sent:
            raise ProtocolError(f"an answer for {echoed}, not for {sent}")


def _assignment(wire: Any) -> Assignment:
    return Assignment(wire.iteration, wire.epoch, wire.start, wire.count, wire.total)


def _synchronisation(wire: Any) -> Synchronisation:
    if wire is None:
        return Synchronisation()
    try:
        return Synchronisation(wire.mode, wire.staleness, wire.replicas_to_aggregate)
    except ValueError as error:
        raise ProtocolError(f"the manager has a mode that this worker lacks: {error}") from error
