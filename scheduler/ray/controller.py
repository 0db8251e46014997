"""The controller of one job on a Ray cluster: an actor that does what the job's supervisor decides.

It lives as long as the job, wherever the one who submitted it may be. Ray starts it again if its node is
lost: it finds the job's actors by their names, and goes on.
"""

import contextlib
import functools
import itertools
import json
import logging
import shutil
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayActorError,
    RayError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from idl.errors import InvalidRequestError
from idl.folders import BEGUN_STATE, KEPT_STATE
from idl.version import __version__
from rpc.tokens import write_secret
from rpc.writing import writing
from scheduler.ray.commands import resources, task
from scheduler.ray.manager_calls import ManagerCalls, Progress
from scheduler.ray.nodes import draining_nodes
from scheduler.ray.process_actor import Described, ProcessActor
from scheduler.ray.secrets import JobSecrets
from scheduler.ray.submission import MANAGER, Submission
from scheduler.ray.supervisor import (
    Action,
    Create,
    Drain,
    Finish,
    Pause,
    Remove,
    Resume,
    Seen,
    Start,
    Supervisor,
)
from scheduler.ray.training import read_reports

NAMESPACE = "evenpace"
"""Ray's namespace of our actors."""

RESULT_FILE = "result.json"
"""File of a job's end, in the job's folder."""

_SAVED_FILE = "controller.json"
_LOOK_SECONDS = 0.5  # between two looks at the processes
_BUSY_LOOK_SECONDS, _BUSY_SECONDS = 0.1, 10.0  # likewise, and for how long after a process took a step
_SILENT_SECONDS = 3.0  # without an answer, after which an actor counts as being placed again
_END_SECONDS = 10.0  # that processes may take to end after SIGTERM: a shard writes its checkpoint
_ALONE_SECONDS = 2.0  # that workers may, whose services have ended
_CLOSE_SECONDS = 20.0  # for an actor to end its process, before it is killed
_NEWS_SECONDS = 60.0  # for which the end of a job is told to whoever asks
_FOLLOWED_SECONDS = 3.0  # without a question, after which a follower has gone
_LAST_WORDS_SECONDS = 5.0  # for an actor to tell the end of its log
_TROUBLES = 120  # looks in a row that may fail, for a minute, before the job does
_LINES = 10_000  # of the job's log that are kept for those who attach

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class News:
    """What is new of a job."""

    start: str  # the start of the controller that says so; lines are numbered anew in each
    # Of each line of the log when it was read, in seconds since 1970, its process, and its text; the
    # controller's own are of "job".
    lines: Sequence[tuple[float, str, str]]
    last: int  # number of the last line, for the next question
    waits: Mapping[str, str]  # why each process that is waited for does not run, by name
    running: int  # number of workers that run
    failures: int  # number of failures so far
    manager: str | None  # where the manager listens, HOST:PORT; None before it does
    progress: Progress | None  # none before the manager knows the job
    finish: Finish | None  # the job's end; None while it goes on


@dataclass
class _Watched:
    """One process's actor, as the controller knows it."""

    handle: Any
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    described: Described | None = None
    asked: Any = None  # the reference of the answer that is awaited
    answered_at: float = field(default_factory=time.monotonic)
    log_from: int = 0
    rest: bytes = b""  # of the log, a line that has no end yet
    lost: str | None = None  # why
    status: int | None = None  # 1 for an actor that could not even begin


@dataclass(frozen=True)
class Placed:
    """What a placed job's controller tells whoever places it."""

    attempt: int  # of the job
    version: int  # of the last placement that was taken
    # The workers that have a process, or are about to have one; one that was placed and is not among them is
    # gone, and its device is free.
    workers: Collection[str]
    members: Collection[str]  # those that train, as the manager says
    state: str  # of the job, as the manager says; empty before it knows the job
    finish: Finish | None  # the attempt's end; None while it goes on


def process_actor(name: str, submission: Submission, node: str | None = None) -> Any:
    """Return the class of a process's actor, with the resources that Ray sets aside for it.

    Args:
        node: Ray's id of the node on which it has to run; None for any.

    Raises:
        ValueError: Ray refuses an amount, such as half of what is given out as a whole.
    """
    wanted = dict(resources(name, submission))
    service = name in submission.services
    return ray.remote(ProcessActor).options(
        name=actor_name(submission.job, name),
        namespace=NAMESPACE,
        # Else they would end with the controller.
        lifetime="detached",
        num_cpus=wanted.pop("CPU", 0),
        num_gpus=wanted.pop("GPU", 0),
        resources=wanted,
        max_concurrency=4,
        # The loss of a node is to cost little, and workers are not to share cores while others are idle.
        scheduling_strategy="SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=False),
        max_restarts=-1 if service else 0,
        max_task_retries=-1 if service else 0,
    )


def actor_name(job: str, process: str | None = None) -> str:
    """Return the name of a job's controller, or of the actor of one of its processes."""
    return job if process is None else f"{job}/{process}"


def actor_names() -> list[str]:
    """Return the names of our actors in the cluster, as `actor_name` makes them."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]


def result_of(submission: Submission) -> dict[str, Any]:
    """Return what is written of a job's last end; nothing where there is none."""
    file = submission.folder / RESULT_FILE
    return json.loads(file.read_text()) if file.exists() else {}


class Controller:
    """The controller of a job.

    Args:
        submission: The job.
        secrets: Its certificates and tokens.
        attempt: Which start of a placed job this is, from 1 on; 0 for a job that is not placed.
    """

    def __init__(self, submission: Submission, secrets: JobSecrets, attempt: int = 0) -> None:
        self._submission = submission
        self._secrets = secrets
        self._attempt = attempt
        self._supervisor = Supervisor(submission, placed=attempt > 0)
        self._watched: dict[str, _Watched] = {}
        self._begun = time.monotonic()
        self._id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=_LINES)
        self._last = 0  # number of the last line
        self._finish: Finish | None = None
        self._told_end = threading.Event()
        # By follower: when it asked last, and whether it was told the end.
        self._followers: dict[str, tuple[float, bool]] = {}
        self._saved: Mapping[str, Any] = {}
        self._leaving: Mapping[str, float] = {}
        self._told: dict[str, int] = {}  # the last start of each process that a line of log was about
        self._waits: dict[str, str] = {}
        self._seen: dict[str, Seen] = {}
        self._changed = time.monotonic()  # when a process took a step towards running, or an end
        self._manager = ManagerCalls(submission.job, secrets, asks_for_members=attempt > 0)
        self._logs = submission.folder / "logs"
        self._prepared = False  # whether the folder is this job's
        threading.Thread(target=self._run, name="evenpace-controller", daemon=True).start()

    def news(self, follower: str, start: str, after: int) -> News:
        """Return what is new.

        Args:
            follower: What tells the caller from others, who are all to hear of the job's end.
            start: The start of the controller that the caller had news of; another's lines are all told.
            after: Number of the last line that the caller has.
        """
        with self._lock:
            self._followers[follower] = time.monotonic(), self._finish is not None
            fresh = min(self._last - (after if start == self._id else 0), len(self._lines))
            lines = list(itertools.islice(self._lines, len(self._lines) - fresh, None))
            running = sum(
                self._seen[name].phase == "running" for name in self._supervisor.workers if name in self._seen
            )
            manager = self._seen.get(MANAGER)
            return News(
                self._id,
                lines,
                self._last,
                dict(self._waits),
                running,
                self._supervisor.failures,
                manager.address if manager is not None else None,
                self._manager.progress,
                self._finish,
            )

    def cancel(self) -> None:
        """End the job."""
        self._supervisor.cancelled = True

    def resize(self, workers: int) -> None:
        """Use up to so many workers from now on (InvalidRequestError: the job cannot)."""
        self._supervisor.resize(workers)

    def place(self, version: int, workers: Mapping[str, str]) -> None:
        """Have these workers from now on, each on its node; see `Supervisor.place`."""
        self._supervisor.place(version, workers)

    def suspend(self) -> None:
        """Pause the job, and end this attempt with its state kept."""
        self._supervisor.suspend()

    def placed(self) -> Placed:
        """Return what whoever places the job has to know."""
        return Placed(
            self._attempt,
            self._supervisor.version,
            self._supervisor.present(self._seen),
            self._manager.members,
            self._manager.job_state,
            self._finish,
        )

    def goodbye(self) -> None:
        """Note that whoever followed the job knows its end, so that the controller can end, too."""
        self._told_end.set()

    def credentials(self) -> Mapping[str, bytes]:
        """Return the files of a certificate and a token with which the job's services can be called."""
        return self._secrets.client

    def reports(self) -> list[dict[str, Any]]:
        """Return what workers have reported."""
        return read_reports(self._submission.folder)

    # -- the loop

    def _run(self) -> None:
        try:
            self._begin()
        except Exception as error:
            log.exception("job %s cannot begin", self._submission.job)
            self._end(Finish("failed", str(error)))
        troubles = 0  # looks in a row that failed
        while self._finish is None:
            try:
                self._turn()
                troubles = 0
                calm = not self._leaving and time.monotonic() - self._changed > _BUSY_SECONDS
            except Exception as error:
                # Ray's own head may be away for a while, or a disk be full.
                troubles += 1
                log.exception("the controller of job %s is in trouble", self._submission.job)
                if troubles > _TROUBLES:
                    self._end(Finish("failed", f"its controller failed: {error!r}"))
                calm = True
            self._wait(_LOOK_SECONDS if calm else _BUSY_LOOK_SECONDS)
        deadline = time.monotonic() + _NEWS_SECONDS
        while time.monotonic() < deadline and not (self._told_end.is_set() and self._all_know_the_end()):
            time.sleep(_BUSY_LOOK_SECONDS)
        ray.kill(ray.get_actor(actor_name(self._submission.job), NAMESPACE), no_restart=True)

    def _all_know_the_end(self) -> bool:
        """Return whether all who have asked of late have been told the job's end."""
        with self._lock:
            return all(
                knows or time.monotonic() - asked > _FOLLOWED_SECONDS
                for asked, knows in self._followers.values()
            )

    def _wait(self, seconds: float) -> None:
        """Wait until the next look, or until an actor that has no node yet answers."""
        placing = [
            one.asked for one in self._watched.values() if one.asked is not None and one.described is None
        ]
        if placing:
            ray.wait(placing, timeout=seconds)
        else:
            time.sleep(seconds)

    def _turn(self) -> None:
        """Look at the processes, and do what is decided."""
        self._look()
        now = time.monotonic() - self._begun
        progress = self._manager.progress
        actions = self._supervisor.decide(
            self._seen,
            now,
            self._manager.job_state,
            self._manager.iteration_seconds,
            progress.reason if progress is not None else "",
            progress.exchange if progress is not None else "",
            kept=self._supervisor.suspending and (self._submission.kept / KEPT_STATE).exists(),
        )
        self._save()
        self._remove([action.name for action in actions if isinstance(action, Remove)])
        for action in actions:
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case Create(name):
                self._create(name)
            case Start():
                self._start(action)
            case Drain(name):
                self._manager.ask(
                    f"drain {self._watched[name].id}", lambda client, job: client.drain(job, name)
                )
            case Pause(keep):
                self._manager.ask("pause", lambda client, job: client.pause(job, keep=keep))
            case Resume():
                self._manager.ask("resume", lambda client, job: client.resume(job))
            case Finish():
                self._end(action)

    def _look(self) -> None:
        """Ask all actors, take the answers that have come, and tell workers where services listen."""
        before = self._addresses()
        answers = [watched.asked for watched in self._watched.values() if watched.asked is not None]
        ready = set(ray.wait(answers, num_returns=len(answers), timeout=0)[0]) if answers else set()
        for name, watched in self._watched.items():
            if watched.asked in ready:
                self._take(name, watched)
            if watched.asked is None and watched.lost is None:
                actor = watched.described.actor if watched.described is not None else ""
                watched.asked = watched.handle.describe.remote(actor, watched.log_from)
        self._look_at_nodes()
        with self._lock:
            before_that = self._seen
            self._seen = {name: self._see(watched) for name, watched in self._watched.items()}
        if _steps(before_that) != _steps(self._seen):
            self._changed = time.monotonic()
        placing = functools.cache(_placing)  # as many workers wait for the same
        self._waits = {name: self._why(name, placing) for name in self._supervisor.waited_for(self._seen)}
        addresses = self._addresses()
        if addresses != before:
            for (
                name,
                watched,
            ) in self._watched.items():  # those that are released, too: they have a part to finish
                if name not in self._submission.services:
                    watched.handle.tell.remote(addresses)
            self._manager.move(addresses.get(MANAGER))

    def _look_at_nodes(self) -> None:
        """Note which nodes are about to go."""
        leaving = draining_nodes()
        for node in set(leaving) - set(self._leaving):
            here = [n for n, one in self._watched.items() if one.described and one.described.node == node]
            if here:
                left = f" in {leaving[node] - time.time():.0f} s" if leaving[node] else ""
                self._say(f"the node of {', '.join(here)} is about to go{left}")
        self._leaving = leaving

    def _take(self, name: str, watched: _Watched) -> None:
        """Take an actor's answer, which may be its end."""
        reference, watched.asked = watched.asked, None
        try:
            described: Described = ray.get(reference, timeout=_LOOK_SECONDS)
        except (ActorUnavailableError, GetTimeoutError):
            return
        except (RayActorError, ActorUnschedulableError) as error:
            watched.lost = str(error).strip()
            watched.status = 1 if getattr(error, "actor_init_failed", False) else None
            self._say(f"{name} is lost: {_reason(watched.lost)}")
            return
        if watched.described is None and described.version != __version__:
            self._say(
                f"{name}: its node has evenpace {described.version}, the controller's node {__version__}; "
                "install the same version on all nodes"
            )
        if watched.described is not None and described.actor != watched.described.actor:
            self._say(f"{name} has moved to {described.seen.host}")
            watched.rest = b""
        watched.described, watched.answered_at = described, time.monotonic()
        watched.log_from = described.log_end
        *whole, watched.rest = (watched.rest + described.log).split(b"\n")
        self._add(name, [line.decode(errors="replace") for line in whole])

    def _see(self, watched: _Watched) -> Seen:
        if watched.lost is not None:
            return Seen("lost", actor=watched.id, status=watched.status, reason=watched.lost)
        if watched.described is None:
            return Seen("placing", actor=watched.id)
        seen = replace(watched.described.seen, actor=watched.id)
        if time.monotonic() - watched.answered_at > _SILENT_SECONDS:
            return replace(seen, phase="placing", host=None)
        end = self._leaving.get(watched.described.node)
        return seen if end is None else replace(seen, goes_in=max(0.0, end - time.time()))

    def _addresses(self) -> dict[str, str]:
        """Return where services listen, or listened last, by name."""
        return {
            name: str(self._seen[name].address)
            for name in self._submission.services
            if name in self._seen and self._seen[name].address is not None
        }

    def _save(self) -> None:
        """Keep what the supervisor must know if this controller is started again."""
        saved = self._supervisor.saved
        if saved != self._saved:
            write_secret(self._submission.folder / _SAVED_FILE, json.dumps(saved) + "\n")
            self._saved = saved

    # -- actors

    def _begin(self) -> None:
        """Prepare the job's folder or, where Ray has started this controller again, find the job's actors.

        Raises:
            InvalidRequestError: The folder is another job's, which is not to be resumed.
        """
        if ray.get_runtime_context().was_current_actor_reconstructed:
            self._prepared = True
            self._say("the job's controller was started again")
            self._supervisor.restore(**json.loads((self._submission.folder / _SAVED_FILE).read_text()))
            self._find_actors()
            return
        folder = self._submission.folder
        if folder.exists():
            ended = result_of(self._submission)
            done = ended.get("state") == "done"
            if ended.get("paused"):
                self._supervisor.resumed()
            if done or not self._submission.resume:
                how = "that is done" if done else "that did not finish: --resume goes on with it"
                raise InvalidRequestError(
                    f"{folder} is the folder of a job of this name {how}; another --name starts another job"
                )
            if self._submission.all_reduce:  # workers begin again, and so does what the manager knows of them
                shutil.rmtree(folder / MANAGER, ignore_errors=True)
                with contextlib.suppress(FileNotFoundError):  # else with the state of an earlier suspension
                    (self._submission.kept / KEPT_STATE).replace(self._submission.kept / BEGUN_STATE)
        (folder / RESULT_FILE).unlink(missing_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        self._prepared = True

    def _find_actors(self) -> None:
        """Find the actors that an earlier start of this controller has made."""
        prefix = actor_name(self._submission.job, "")
        for actor in actor_names():
            if actor.startswith(prefix):
                name = actor.removeprefix(prefix)
                self._watched[name] = _Watched(ray.get_actor(actor, NAMESPACE))
                self._say(f"{name} is found again")
        for name in self._supervisor.names:
            if name not in self._watched:
                self._say(f"{name} is lost: it is not there any more")

    def _create(self, name: str) -> None:
        """Make the actor of a process, unless Ray still knows one of its name that has died."""
        actor = process_actor(name, self._submission, self._supervisor.node(name))
        try:
            handle = actor.remote(task(name, self._submission, self._secrets))
        except ValueError as error:  # the name is taken
            log.warning("%s cannot be created yet: %s", name, error)
            return
        self._watched[name] = _Watched(handle)

    def _start(self, action: Start) -> None:
        """Have an actor start its process; before, the manager takes out what it knows under a worker's name.

        It may be asked again until the process is seen to run: a call to an actor may be lost.
        """
        name, handle = action.name, self._watched[action.name].handle

        def start() -> None:
            handle.tell.remote(self._addresses())
            handle.start.remote(action.generation, action.environment)

        if self._seen[name].phase != "ready" and self._told.get(name) != action.generation:
            self._told[name] = action.generation
            self._say(f"{name} is started again")
        if name in self._submission.services or self._submission.fixed_group:
            start()
        else:
            key = f"start {self._watched[name].id} {action.generation}"
            self._manager.ask(key, lambda client, job: client.remove(job, name), start)

    def _remove(self, names: Sequence[str]) -> None:
        """End processes in good order, and their actors."""
        group = {name: self._watched[name] for name in names}
        self._close(group, _END_SECONDS)
        for name, watched in group.items():
            ray.kill(watched.handle, no_restart=True)
            del self._watched[name]
            self._say(f"{name} has left its node")

    def _end(self, finish: Finish) -> None:
        """End all processes, then their actors.

        Workers end before the services where the job is done. Otherwise they end after these, without leaving
        the job, so that it can go on some day.
        """
        if finish.state == "suspended":
            self._say("the job is suspended")
        elif finish.state != "done":
            self._say(f"the job ends: {finish.reason}")
        self._manager.stop()
        services = {n: one for n, one in self._watched.items() if n in self._submission.services}
        workers = {n: one for n, one in self._watched.items() if n not in services}
        if finish.state == "done":
            self._close(workers, _END_SECONDS)
            self._close(services, _END_SECONDS)
        else:
            self._close(services, _END_SECONDS)
            self._close(workers, _ALONE_SECONDS)
        for watched in self._watched.values():
            ray.kill(watched.handle, no_restart=True)
        result = {
            **asdict(finish),
            "failures": self._supervisor.failures,
            "attempt": self._attempt,
            "paused": self._supervisor.paused,
            "owner": self._submission.owner,
        }
        try:
            if finish.state == "done":
                shutil.rmtree(self._submission.kept, ignore_errors=True)
            if self._prepared:
                write_secret(self._submission.folder / RESULT_FILE, json.dumps(result) + "\n")
        except OSError as error:
            log.error("the end of job %s cannot be written: %s", self._submission.job, error)
        with self._lock:
            self._finish = finish

    def _close(self, group: Mapping[str, _Watched], seconds: float) -> None:
        """End processes within `seconds`, and read the ends of their logs."""
        running = [one for one in group.values() if one.lost is None and one.described is not None]
        references = [one.handle.close.remote(seconds) for one in running]
        if references:
            ray.wait(references, num_returns=len(references), timeout=_CLOSE_SECONDS)
        for name, one in group.items():
            if one.lost is not None or one.described is None:
                continue
            try:
                asked = one.handle.describe.remote(one.described.actor, one.log_from)
                described: Described = ray.get(asked, timeout=_LAST_WORDS_SECONDS)
                ray.get(one.handle.remove.remote(), timeout=_LAST_WORDS_SECONDS)
            except RayError as error:
                log.warning("the end of %s's log is lost: %s", name, error)
                continue
            self._add(name, (one.rest + described.log).decode(errors="replace").splitlines())

    # -- words

    def _why(self, name: str, placing: Callable[[tuple[tuple[str, float], ...]], str]) -> str:
        """Return why a process does not run; `placing` tells it of one that waits for its resources."""
        one = self._seen.get(name)
        if one is None:
            return "is about to be created"
        if one.phase == "ready":
            services = self._submission.services
            missing = [] if name in services else [s for s in services if s not in self._addresses()]
            return f"waits for {', '.join(missing)}" if missing else "is about to start"
        if one.phase == "ended":
            return f"ended with status {one.status}"
        if one.phase == "lost":
            return "was lost, and is about to be created again"
        described = self._watched[name].described
        if described is not None:
            return f"does not answer: its node {described.seen.host} may be lost"
        if time.monotonic() - self._watched[name].answered_at < _SILENT_SECONDS:
            return "is about to be placed"
        return placing(tuple(resources(name, self._submission).items()))

    def _say(self, text: str) -> None:
        self._add("job", text.splitlines())

    def _add(self, name: str, lines: Sequence[str]) -> None:
        """Add lines to the log, in memory and in the job's folder."""
        if not lines:
            return
        now = time.time()
        with self._lock:
            self._lines.extend((now, name, line) for line in lines)
            self._last += len(lines)
        if not self._prepared:
            return
        try:
            with writing(file := self._logs / f"{name}.log"), file.open("a") as stream:
                stamp = (
                    f"{datetime.fromtimestamp(now).isoformat(' ', 'milliseconds')} " if name == "job" else ""
                )
                stream.writelines(f"{stamp}{line}\n" for line in lines)
        except OSError as error:
            log.warning("the log of %s cannot be written: %s", name, error)


def _steps(seen: Mapping[str, Seen]) -> Mapping[str, tuple[Any, ...]]:
    """Return how far processes are, by name."""
    return {name: (one.phase, one.generation, one.address, one.actor) for name, one in seen.items()}


def _placing(wanted: tuple[tuple[str, float], ...]) -> str:
    """Return why an actor that takes some resources has no node, as far as the nodes' resources tell."""
    words = " and ".join(f"{amount:g} {resource}" for resource, amount in wanted) or "a node"
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    if not any(all(node.get(name, 0) >= amount for name, amount in wanted) for node in nodes):
        return f"needs {words}, which no node of the cluster has"
    free = ray.available_resources()  # type: ignore[no-untyped-call]
    if any(free.get(name, 0) < amount for name, amount in wanted):
        return f"needs {words}, and all are taken"
    return f"needs {words}, which Ray is about to set aside"


def _reason(text: str) -> str:
    """Return the last sentence of what Ray says about an actor's death."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "Ray does not say why"
