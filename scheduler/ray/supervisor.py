"""The decisions about a job on a Ray cluster: what is seen of its processes in, actions out.

This module knows no Ray, thread, file or clock.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from idl.endings import GONE
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP
from scheduler.ray.submission import MANAGER, Submission

_LEAVING_SECONDS, _LEAVING_ITERATIONS = 1.0, 1.25  # before its node goes, a worker is drained
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.5, 30.0  # seconds from an end to the next start
_LOSS_SECONDS = 20.0  # until Ray says that a node is lost, and some
_MOST_DOUBLINGS = 10  # beyond which the wait is the longest
_WHILE_SECONDS = 120.0  # after which an end is the first again

PAUSING = "pausing"
"""State of a job that is paused, while workers still compute what they were given."""

Phase = Literal["placing", "ready", "running", "ended", "lost"]


@dataclass(frozen=True)
class Seen:
    """What is seen of one process of a job, and of the actor that owns it.

    Attributes:
        phase: "placing": its actor has no node, or does not answer; "ready": the actor has a node, and has
            not started the process; "running"; "ended"; "lost": the actor died.
        status: Exit status of a process that has ended, as `subprocess` has it; of a lost actor 1 if it could
            not begin, as where evenpace is not installed, and None if its node was lost.
    """

    phase: Phase
    generation: int = -1  # the number of the process's last start, as `Start` gave it; -1 before the first
    status: int | None = None
    # Where a service listens, or listened before it ended, as HOST:PORT; None before.
    address: str | None = None
    host: str | None = None  # address of its node; None while it is placed
    port: int | None = None  # a free port of its node, at which the workers' group can meet
    reason: str = ""  # why it is lost, or the end of its log
    # Seconds until its node goes, 0 where that is not known; None for one that stays.
    goes_in: float | None = None
    actor: str = ""  # what tells the actor from others that the process had before

    @property
    def leaving(self) -> bool:
        """Return whether its node is about to go."""
        return self.goes_in is not None

    @property
    def failed(self) -> bool:
        """Return whether the process has ended with an error, was killed, or could not begin."""
        return self.phase in ("ended", "lost") and self.status not in (0, None)

    @property
    def finished(self) -> bool:
        """Return whether the process has ended well."""
        return self.phase == "ended" and self.status == 0


@dataclass(frozen=True)
class Create:
    """Make the actor of a process, in place of one that died."""

    name: str


@dataclass(frozen=True)
class Start:
    """Start a process, whatever is left of its last start being ended before."""

    name: str  # the process
    generation: int  # the number of this start; it is higher than that of the one before
    # Variables that say who is in the workers' group.
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Drain:
    """Have the manager release a worker once it has finished what it was given.

    It is asked again as long as the worker runs: the manager may refuse while the others cannot do without.
    """

    name: str


@dataclass(frozen=True)
class Remove:
    """End a process in good order, and its actor."""

    name: str


@dataclass(frozen=True)
class Pause:
    """Have the manager plan nothing more, so that all shards come to the same version."""

    keep: bool = False  # likewise, once workers have written down the state that they alone have


@dataclass(frozen=True)
class Resume:
    """Have the manager go on after `Pause`."""


@dataclass(frozen=True)
class Finish:
    """End the job."""

    state: Literal["done", "failed", "cancelled", "suspended"]
    reason: str = ""  # why, in words; empty where it is done or suspended


Action = Create | Start | Drain | Remove | Pause | Resume | Finish


@dataclass
class _Suspect:
    """A generation of a group of workers, of which at least one has ended otherwise than well."""

    name: str  # the first of them
    seen: Seen  # what was seen of it
    since: float  # since when that is known, in seconds since the job was submitted
    ended: set[str] = field(default_factory=set)  # the workers whose ends were seen
    was_lost: bool = False  # whether one was lost with its node
    counted: bool = False  # whether it counts as a failure


class Supervisor:
    """The supervisor of one job: decides which processes are created, started and started again.

    Each worker is replaced alone, and the others go on. But where the workers are a fixed group, all are
    started again when one is lost, as the next generation, the manager too, and the script goes on from its
    own checkpoint.

    A node that is about to go is left in time: its workers are drained as late as is safe, and started
    elsewhere; for services a job is paused at an iteration's end, so that they go on elsewhere from the
    version at which all are.

    A job may also be placed: `place` names its workers, each with its node. One that is lost, or leaves with
    its node, is then gone for good, and whoever places the job takes another in its stead.

    Args:
        submission: The job.
        placed: Whether the job is placed; it has no worker before the first call.

    Attributes:
        failures: Failures so far: workers that ended with an error, and services that could not be started.
            The loss of a node is none.
    """

    def __init__(self, submission: Submission, *, placed: bool = False) -> None:
        self._submission = submission
        self._placed = placed
        self._generations: dict[str, int] = {}  # the highest seen, by process
        self._ends: set[tuple[str, str, int]] = set()  # that were seen: process, actor and generation
        self._recent_ends: dict[str, tuple[int, float]] = {}  # by process, how many and when the last was
        self._suspects: dict[int, _Suspect] = {}  # by the group's generation
        self._due: dict[str, float] = {}  # when a process may be started again
        self._failures: dict[str, int] = {}
        self._group = 0  # the generation of a fixed group of workers
        self._broken = False  # whether one of them was lost, or has failed
        self._asked: dict[str, int] = {}  # the generation in which each of them was to be started
        self._enough = False  # whether as many workers have run as the job starts with
        self._finishing = False
        self._draining: set[str] = set()  # workers that are released since their node goes, or by `resize`
        self._paused = False  # by this supervisor
        # The workers that are wanted, each with the node (Ray's id) on which it has to run; None: on any.
        self._wanted: dict[str, str | None] = {} if placed else self._numbered(submission.workers.most)
        self._made: set[str] = set()  # workers of a placed job whose actors were seen; others have never run
        self._version = 0  # of its placement
        self.cancelled = False  # whether the job is to be ended
        self.suspending = False  # whether it is to be paused, and then ended
        self._known = False  # whether the manager has known the job

    @property
    def failures(self) -> int:
        """Return the number of failures so far."""
        return sum(self._failures.values())

    @property
    def workers(self) -> list[str]:
        """Return the names of the workers that are wanted."""
        return list(self._wanted)

    @property
    def names(self) -> list[str]:
        """Return the names of all processes that are wanted, the services first."""
        return [*self._submission.services, *self.workers]

    def resize(self, workers: int) -> None:
        """Use up to so many workers from now on; those that are too many are drained.

        Raises:
            InvalidRequestError: The workers are a fixed group, or the number is below 1.
        """
        if workers < 1:
            raise InvalidRequestError(f"workers {workers}: must be at least 1")
        if self._submission.fixed_group:
            raise InvalidRequestError(
                f"workers {workers}: a group of workers that reduce gradients among themselves keeps its size"
            )
        if self._placed:
            raise InvalidRequestError(f"workers {workers}: the cluster decides how many this job has")
        self._wanted = self._numbered(workers)

    def place(self, version: int, workers: Mapping[str, str]) -> None:
        """Have these workers from now on, each on its node; others are drained.

        Args:
            version: The placement's number; one that is not above the last one's is late, and ignored.
            workers: Ray's id of the node of each. A name that the job has had means the same worker: one that
                is gone does not come back.

        Raises:
            InvalidRequestError: A worker would move, or the job is not placed.
        """
        if not self._placed:
            raise InvalidRequestError("the job was submitted with a number of workers, and is not placed")
        if version <= self._version:
            return
        for name, node in workers.items():
            if self._wanted.get(name, node) != node:
                raise InvalidRequestError(
                    f"worker {name}: is on {self._wanted[name]}, and cannot move to {node}"
                )
        self._wanted, self._version = dict(workers), version

    def node(self, worker: str) -> str | None:
        """Return Ray's id of the node on which a process has to run, or None for any."""
        return self._wanted.get(worker)

    @property
    def version(self) -> int:
        """Return the number of the last placement."""
        return self._version

    def present(self, seen: Mapping[str, Seen]) -> list[str]:
        """Return the workers of a placed job that have an actor, or are about to have one."""
        known = [*self._wanted, *(name for name in seen if name not in self._submission.services)]
        return [name for name in dict.fromkeys(known) if name in seen or name not in self._made]

    def suspend(self) -> None:
        """Pause the job, and then end it with its state kept."""
        self.suspending = True

    @property
    def paused(self) -> bool:
        """Return whether the job is paused by this supervisor, and not by an operator."""
        return self._paused

    def resumed(self) -> None:
        """Note that the job was suspended, and goes on: its manager takes it for paused."""
        self._paused = True

    def _numbered(self, workers: int) -> dict[str, str | None]:
        return {self._submission.worker(number): None for number in range(workers)}

    @property
    def saved(self) -> dict[str, Any]:
        """Return what must outlive the controller, as JSON can hold it; see `restore`."""
        return {
            "workers": dict(self._wanted),
            "made": sorted(self._made),
            "version": self._version,
            "paused": self._paused,
            "suspending": self.suspending,
            "known": self._known,
            "failures": dict(self._failures),
        }

    def restore(
        self,
        workers: Mapping[str, str | None],
        made: Sequence[str],
        version: int,
        paused: bool,
        suspending: bool,
        known: bool,
        failures: Mapping[str, int],
    ) -> None:
        """Take over what an earlier supervisor of this job has `saved`."""
        self._wanted, self._made, self._version = dict(workers), set(made), version
        self._paused, self.suspending, self._known = paused, suspending, known
        self._failures = dict(failures)

    def decide(
        self,
        seen: Mapping[str, Seen],
        now: float,
        job_state: str = "",
        iteration_seconds: float = 0.0,
        job_reason: str = "",
        exchange: str = "",
        *,
        kept: bool = False,
    ) -> list[Action]:
        """Return what is to be done.

        Args:
            seen: What is seen of the processes whose actors exist, or have died.
            now: Seconds since the job was submitted.
            job_state: The job's state as its manager says, or `PAUSING`; empty before it knows the job.
            iteration_seconds: How long an iteration takes at present.
            job_reason: Why the job is in that state, as its manager says.
            exchange: The way in which its gradients meet, likewise; one of `idl.exchange`.
            kept: Whether workers that reduce gradients among themselves have written their state down.
        """
        if self.cancelled:
            return [Finish("cancelled", "it was ended by its user")]
        self._known = self._known or bool(job_state)
        self._wanted = {name: self._wanted[name] for name in self.present(seen) if name in self._wanted}
        self._made.update(name for name in seen if self._placed and name not in self._submission.services)
        for name, one in seen.items():
            self._generations[name] = max(self._generations.get(name, -1), one.generation)
        finish = (
            self._suspended(seen, job_state, kept=kept)
            or self._without_state(seen, job_state, job_reason)
            or self._unmovable(exchange)
            or self._failed(seen, now)
            or self._done(seen, job_state)
            or self._late(seen, now)
        )
        if finish is not None:
            return [finish]
        moves = [*self._worker_moves(seen, iteration_seconds), *self._service_moves(seen, job_state)]
        removed = {action.name for action in moves if isinstance(action, Remove)}
        missing = [name for name in self.names if name not in seen or seen[name].phase == "lost"]
        missing = [name for name in missing if name not in removed]
        if self._finishing:
            missing = [name for name in missing if name in self._submission.services]
        staying = {name: one for name, one in seen.items() if name not in removed}
        return [*moves, *map(Create, missing), *self._starts(staying, now)]

    def waited_for(self, seen: Mapping[str, Seen]) -> list[str]:
        """Return the names of the processes that the job waits for."""
        if self._finishing:
            return []
        return [
            name
            for name in self.names
            if name not in seen or (seen[name].phase != "running" and not self._released(name, seen[name]))
        ]

    def _released(self, name: str, one: Seen) -> bool:
        """Return whether a worker ended since the manager, or an operator, let it go."""
        return one.finished and name not in self._draining and name not in self._submission.services

    # -- the end

    def _failed(self, seen: Mapping[str, Seen], now: float) -> Finish | None:
        """Take in ends that are new, and return the end of a job that has too many failures."""
        for name in self.names:
            one = seen.get(name)
            if one is None or (self._submission.fixed_group and name not in self._submission.services):
                continue
            failure = self._is_failure(name, one)
            if not failure and (name not in self._submission.services or one.phase != "ended"):
                continue
            if (name, one.actor, one.generation) in self._ends:
                continue
            self._ends.add((name, one.actor, one.generation))
            self._back_off(name, now, at_once=not failure)
            if failure and (finish := self._count(name, name, one)) is not None:
                return finish
        return self._failed_group(seen, now) if self._submission.fixed_group else None

    def _failed_group(self, seen: Mapping[str, Seen], now: float) -> Finish | None:
        """Take in that workers of a group have failed, as `_failed` does; they fail together.

        Where one was lost with its node, the others fail for want of it, which is none. It may take a while
        until the loss is seen: so a failure counts once the ends of all are seen, or after that while.
        """
        for name in self.workers:
            one = seen.get(name)
            if one is not None and one.phase == "lost" and one.status is None:
                lost = max(self._asked.get(name, -1), self._generations.get(name, -1))
                self._suspects.setdefault(lost, _Suspect(name, one, now)).was_lost = True
            elif one is not None and (one.phase == "ended" or one.phase == "lost"):
                if one.failed and not self._finishing and one.generation not in self._suspects:
                    self._suspects[one.generation] = _Suspect(name, one, now)
                    self._back_off("group", now, at_once=False)
                if one.generation in self._suspects:
                    self._suspects[one.generation].ended.add(name)
        for suspect in self._suspects.values():
            known = len(suspect.ended) == len(self._wanted) or now - suspect.since > _LOSS_SECONDS
            if suspect.counted or suspect.was_lost or not known:
                continue
            suspect.counted = True
            if (finish := self._count("group", suspect.name, suspect.seen)) is not None:
                return finish
        return None

    def _without_state(self, seen: Mapping[str, Seen], job_state: str, reason: str) -> Finish | None:
        """Return the end of a job whose workers have lost its parameters, which they alone had.

        They would begin anew, and nobody would know.
        """
        if not self._submission.all_reduce or self._submission.fixed_group:
            return None
        workers = {name: one for name, one in seen.items() if name not in self._submission.services}
        deserted = (job_state, reason) == ("ended", GONE) and not any(
            one.finished and name not in self._draining for name, one in workers.items()
        )
        if job_state != "failed" and not deserted:
            return None
        why = f"{reason}, and with them its parameters" if deserted else reason
        failed = [f"\n{name}: {one.reason}" for name, one in workers.items() if one.failed and one.reason]
        return Finish(
            "failed",
            f"{why}; --resume starts it again, from the script's own checkpoint{''.join(failed[:1])}",
        )

    def _unmovable(self, exchange: str) -> Finish | None:
        """Return the end of a job that is placed, and can neither grow, nor shrink, nor be suspended."""
        if not self._placed or exchange != FIXED_GROUP:
            return None
        return Finish(
            "failed",
            "its workers reduce gradients in a group that stays as it is, but the jobs of a shared cluster "
            "grow, shrink and are suspended: let the manager form the group, as by balance(model, loader, "
            "optimizer), or give the job shards of a parameter server",
        )

    def _count(self, key: str, name: str, one: Seen) -> Finish | None:
        """Count a failure, and return the end of a job that has too many."""
        self._failures[key] = self._failures.get(key, 0) + 1
        return _failed_finish(name, one) if self.failures > self._submission.max_failures else None

    def _back_off(self, key: str, now: float, *, at_once: bool) -> None:
        """Have a process that has ended wait before it is started again, the longer the more often it has.

        Args:
            key: The process.
            now: Seconds since the job was submitted.
            at_once: Whether it is started at once after its first end in a while.
        """
        times, last = self._recent_ends.get(key, (0, -math.inf))
        times = times + 1 if now - last < _WHILE_SECONDS else 1
        self._recent_ends[key] = times, now
        doublings = min(times - (2 if at_once else 1), _MOST_DOUBLINGS)
        wait = min(_FIRST_BACKOFF * 2**doublings, _LONGEST_BACKOFF) if doublings >= 0 else 0.0
        self._due[key] = now + wait

    def _is_failure(self, name: str, one: Seen) -> bool:
        if name in self._submission.services:
            # One that ran before was killed, or its machine has a fault: it goes on from its state.
            return one.phase == "lost" or (one.phase == "ended" and one.address is None)
        return one.failed and not self._finishing

    def _done(self, seen: Mapping[str, Seen], job_state: str) -> Finish | None:
        """Return the end of a job that has been trained, and of which no worker runs.

        A worker that has ended well may have been released; so it takes the manager's word, or that of all.
        """
        workers = {name: seen[name] for name in self.workers if name in seen}
        finished = [name for name, one in workers.items() if one.finished]
        released = [name for name in finished if name in self._draining]
        over = job_state == "ended" and not self._submission.fixed_group
        if (finished and len(finished) - len(released) == len(self._wanted)) or (finished and over):
            self._finishing = True
        if not self._finishing or any(one.phase == "running" for one in workers.values()):
            return None
        # One that was killed would have been replaced; of one that failed, something may be missing.
        for name, one in workers.items():
            if one.failed and (one.status or 0) > 0:
                return _failed_finish(name, one)
        return Finish("done")

    def _suspended(self, seen: Mapping[str, Seen], job_state: str, *, kept: bool) -> Finish | None:
        """Return the end of a job that is to be suspended, once all its shards are at the same version.

        It may have lost all workers while they went back to a version: then it goes on from what its shards
        have in common, as after the loss of the whole cluster. Where workers reduce gradients among
        themselves, it ends once they have written their state down, after which they compute nothing; or if
        they have none, since the manager has not known the job.
        """
        if self._submission.all_reduce:
            is_safe = kept or not self._known
        else:
            deserted = all(name in self._submission.services for name in seen)
            is_safe = deserted or job_state in ("", "gathering", "paused")
        return Finish("suspended") if self.suspending and is_safe else None

    def _late(self, seen: Mapping[str, Seen], now: float) -> Finish | None:
        """Return the end of a job that could not start in time."""
        running = [name for name in self.workers if name in seen and seen[name].phase == "running"]
        self._enough = self._enough or len(running) >= self._submission.workers.least
        if self._enough or self._finishing or now <= self._submission.start_timeout:
            return None
        return Finish(
            "failed",
            f"it could not start within {self._submission.start_timeout:g} s: "
            f"{', '.join(self.waited_for(seen))} did not run",
        )

    # -- moves

    def _worker_moves(self, seen: Mapping[str, Seen], iteration_seconds: float) -> Iterator[Action]:
        """Yield what workers are to do that are too many, or whose node is about to go."""
        # It finishes what it was given; if it comes too late, others redo one iteration's part.
        needed = _LEAVING_SECONDS + _LEAVING_ITERATIONS * iteration_seconds
        for name, one in seen.items():
            if name in self._submission.services or self._submission.fixed_group or self._finishing:
                continue
            if self._placed and one.phase == "lost":
                yield Remove(name)
                continue
            if not one.leaving and name in self.workers:
                if one.phase in ("ready", "running"):
                    self._draining.discard(name)
            elif one.phase == "running":
                if name not in self.workers or one.goes_in is None or one.goes_in <= needed:
                    self._draining.add(name)
                    yield Drain(name)
            elif one.phase in ("ready", "ended") or (one.phase == "placing" and name not in self.workers):
                yield Remove(name)

    def _service_moves(self, seen: Mapping[str, Seen], job_state: str) -> Iterator[Action]:
        """Yield what is to be done for services whose node is about to go; the others wait for them."""
        services = {name: seen[name] for name in self._submission.services if name in seen}
        leaving = [name for name, one in services.items() if one.leaving and one.phase != "placing"]
        if self._submission.fixed_group:
            return  # a group begins again without its manager, be it lost or moved
        keeps = self.suspending and self._submission.all_reduce
        if keeps or ((leaving or self.suspending) and job_state in ("running", "recovering")):
            self._paused = True
            yield Pause(keep=keeps)
        elif leaving and job_state != PAUSING:
            yield from map(Remove, leaving)
        elif (
            self._paused
            and not self.suspending
            and not any(one.leaving for one in services.values())
            and all(self._listens(services.get(name)) for name in self._submission.services)
        ):
            if job_state == "paused":
                yield Resume()
            elif job_state == "running":
                self._paused = False

    # -- starts

    def _starts(self, seen: Mapping[str, Seen], now: float) -> Iterator[Start]:
        for name in self._submission.services:
            one = seen.get(name)
            if self._startable(one) and now >= self._due.get(name, 0.0):
                yield Start(name, self._generations[name] + 1)
        if self._finishing:
            return
        if self._submission.fixed_group:
            yield from self._group_starts(seen, now)
        elif all(self._listens(seen.get(name)) for name in self._submission.services):
            for name in self.workers:
                one = seen.get(name)
                if one is not None and (one.leaving or self._released(name, one)):
                    continue
                if self._startable(one) and now >= self._due.get(name, 0.0):
                    yield Start(name, self._generations[name] + 1)

    def _group_starts(self, seen: Mapping[str, Seen], now: float) -> Iterator[Start]:
        """Yield the starts of a group, once all its workers have a node."""
        self._broken = self._broken or any(
            self._has_left_group(name, seen.get(name)) for name in self.workers
        )
        manager = seen.get(MANAGER)
        placed = [seen[name] for name in self.workers if name in seen and seen[name].host is not None]
        if manager is None or len(placed) < len(self.workers) or now < self._due.get("group", 0.0):
            return
        self._group = max(self._group, *(self._generations[name] for name in self.workers))
        if self._broken:
            # The manager is started again, too, since it may know workers of before.
            self._group = max(self._group, self._generations[MANAGER]) + 1
            self._broken = False
        if self._listens(manager) and manager.generation < self._group:
            yield Start(MANAGER, self._group)
        elif self._listens(manager):
            for rank, name in enumerate(self.workers):
                if seen[name].generation < self._group:
                    self._asked[name] = self._group
                    yield Start(name, self._group, _group_environment(rank, placed))

    def _has_left_group(self, name: str, one: Seen | None) -> bool:
        """Return whether a worker of the present generation was lost, or has failed."""
        known = self._generations.get(name, -1)
        if one is None or one.phase == "lost":
            return self._group in (self._asked.get(name), known)
        return known == self._group and (one.failed or one.generation < self._group)

    def _startable(self, one: Seen | None) -> bool:
        return one is not None and (one.phase == "ready" or one.phase == "ended")

    def _listens(self, one: Seen | None) -> bool:
        return one is not None and one.phase == "running" and one.address is not None


def _failed_finish(name: str, one: Seen) -> Finish:
    how = "cannot run" if one.phase == "lost" else f"ended with status {one.status}"
    return Finish("failed", f"{name} {how}:\n{one.reason}")


def _group_environment(rank: int, workers: list[Seen]) -> dict[str, str]:
    """Return the variables by which `torch.distributed` finds the workers' group, as torchrun sets them."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(workers)),
        "LOCAL_RANK": "0",  # Ray shows each worker its own GPUs only
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": str(workers[0].host),
        "MASTER_PORT": str(workers[0].port),
    }
