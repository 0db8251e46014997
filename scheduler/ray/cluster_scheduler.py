"""The scheduler of a Ray cluster's jobs: an actor that does what the cluster's machine decides.

It lives as long as the cluster, and Ray starts it again when its process dies. At each look it compares what
the machine wants with what the controllers of jobs say, and asks for what is missing: so nothing that was
asked for is lost with its process, and nothing done twice.
"""

import base64
import json
import logging
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from math import inf
from queue import Empty, Queue
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from idl.errors import InvalidRequestError, UnavailableError
from rpc.tokens import OPERATOR, Purpose, TokenKeys, issue, write_secret
from scheduler.allocation import Allocation, Placement
from scheduler.cluster.events import (
    Action,
    Cancelled,
    Decide,
    Decided,
    Ended,
    Event,
    Held,
    JobRequest,
    NodeJoined,
    NodeLeaving,
    NodeLost,
    PolicyChanged,
    Recovered,
    Say,
    Submitted,
    Suspended,
    Tick,
    WorkerGone,
    WorkerJoined,
)
from scheduler.cluster.history import FILE as HISTORY_FILE
from scheduler.cluster.history import PAUSED, History, Line, account, reasons
from scheduler.cluster.jobs import LiveJob
from scheduler.cluster.machine import ClusterMachine
from scheduler.cluster.rights import (
    USERS_CALLS,
    Caller,
    Rights,
    check_job,
    owner_of,
    visible_record,
    visible_status,
)
from scheduler.cluster.status import status_of
from scheduler.nodes import Node
from scheduler.policies import POLICIES
from scheduler.policies.base import Policy, Round
from scheduler.ray import cluster
from scheduler.ray.cluster_settings import FOLDER, LIVE_POLICIES, ClusterSettings
from scheduler.ray.controller import NAMESPACE, Placed, actor_name, result_of
from scheduler.ray.nodes import draining_nodes
from scheduler.ray.submission import Scale, Submission

LOG_FILE = "cluster.log"

_STATE_FILE = "cluster.json"
_LOOK_SECONDS = 0.25  # between two looks at the jobs
_NODES_SECONDS = 1.0  # between two looks at the cluster's nodes
_LINES = 200  # of the log that are kept for `status`
_STARTER_SECONDS = 600.0  # for which who has started the scheduler may call it as an operator

log = logging.getLogger(__name__)


@dataclass
class _Led:
    """A job's controller, and what it was asked last."""

    controller: Any = None
    asked: Any = None  # the reference of the answer that is awaited
    version: int = 0  # of the last placement
    workers: Mapping[str, str] | None = None  # that placement: nodes by worker


class _Nobody(Policy):
    """Gives no job a device, so that all are suspended."""

    def allocate(self, at: Round) -> Allocation:
        """Return an empty allocation."""
        return Allocation()


class ClusterScheduler:
    """The actor, which is called by `call`; many may do so at once, and again for want of an answer.

    Args:
        settings: How the cluster is shared; all but the policy is as it was, where Ray has started this actor
            again.
        keys: Keys that callers' tokens are signed with; none where no tokens are asked for.
    """

    def __init__(self, settings: ClusterSettings, keys: tuple[bytes, ...] = ()) -> None:
        self._settings = settings
        self._rights = Rights(TokenKeys(keys) if keys else None)
        self._folder = settings.storage / FOLDER
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = self._folder / _STATE_FILE
        self._lock = threading.RLock()  # of the machine
        self._inbox: Queue[tuple[Event, Future[None] | None]] = Queue()
        self._led: dict[str, _Led] = {}
        self._hosts: dict[str, str] = {}  # addresses of nodes, by Ray's id
        self._looked_at_nodes = -inf
        self._lines: deque[tuple[str, str]] = deque(maxlen=_LINES)  # owner and text of each
        self._trouble = ""  # what went wrong in the last look
        # What is to be done, and answered, once it is kept.
        self._due: list[tuple[list[Action], Future[None] | None]] = []
        self._changed = False  # whether something is to be kept
        self._closing = False
        self._thinker = ThreadPoolExecutor(1, "evenpace-policy")
        self._history = History(self._folder / HISTORY_FILE)
        again = ray.get_runtime_context().was_current_actor_reconstructed
        saved = json.loads(self._file.read_text()) if self._file.exists() else {}
        chosen = saved.get("policy") if again else settings.policy or saved.get("policy")
        self._policy_name = chosen or LIVE_POLICIES[0]
        self._policy: Policy = POLICIES[self._policy_name]()
        if saved:
            self._machine = ClusterMachine.restored(saved["machine"])
            if not again:
                self._history.interrupt(saved["machine"]["now"])
            self._say("goes on" if not again else "was started again")
            # What has ended meanwhile is seen at the first look.
            workers = tuple(
                (name, job.attempt, worker, lease.node)
                for name, job in self._machine.jobs.items()
                for worker, lease in job.leases.items()
            )
            self._inbox.put((Recovered(tuple(self._nodes()), workers), None))
        else:
            self._machine = ClusterMachine(settings.interval)
        self._inbox.put((PolicyChanged(settings.interval), None))
        threading.Thread(target=self._run, name="evenpace-cluster", daemon=True).start()

    # -- calls

    def call(self, token: str, name: str, *arguments: Any) -> Any:
        """Call a method below for who has a token; users' calls are told the caller first.

        Raises:
            UnauthorisedError: The token does not allow it; see `Rights.admit`.
            EvenpaceError: As the method does.
        """
        caller = self._rights.admit(token, name, time.time())
        return getattr(self, name)(*((caller, *arguments) if name in USERS_CALLS else arguments))

    def submit(self, caller: Caller, submission: Submission, weight: float, once: str) -> None:
        """Have a job wait for its turn; it is kept once this returns.

        Args:
            submission: The job; its `workers.most` is the number of devices that it can use.
            weight: Its share, or its priority, relative to other jobs'.
            once: What tells this submission from others of the same job.

        Raises:
            InvalidRequestError: There is such a job, or it was another user's, a value is not allowed, or the
                scheduler is going down.
        """
        if self._closing:
            raise InvalidRequestError(f"job {submission.job!r}: the cluster is going down")
        if submission.fixed_group:
            raise InvalidRequestError(
                f"job {submission.job!r}: on a shared cluster jobs grow, shrink and are suspended, but a "
                "group that the script makes stays as it is: leave out --fixed-group"
            )
        # It starts with one worker, where no more are free.
        workers, storage = Scale(1, submission.workers.most), self._settings.storage
        job = self._settings.device.taken_by(replace(submission, workers=workers, storage=storage))
        cluster.check_resources(job)
        with self._lock:
            known = self._machine.jobs.get(job.job)
        before = known.request.owner if known is not None else None
        if known is None and job.folder.exists():
            before = result_of(job).get("owner", "")
        job = replace(job, owner=owner_of(job.job, before, caller))
        try:
            packed = base64.b64encode(pickle.dumps(job)).decode()
            work = {"submission": packed, "once": once}
            request = JobRequest(job.job, job.workers.most, weight, work=work, owner=job.owner)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        another = f"job {job.job!r}: there is another one of this name, which has not ended"
        if known is not None and known.request == request:  # it is asked again
            return
        if known is not None and known.state != "ended":
            raise InvalidRequestError(another)
        if job.folder.exists() and not submission.resume:
            raise InvalidRequestError(
                f"{job.folder} is the folder of a job of this name: --resume goes on with it, another --name "
                "starts another job"
            )
        self._ask(Submitted(request, result_of(job).get("attempt", 0)))
        with self._lock:
            if self._machine.jobs[job.job].request != request:  # submitted at the same time
                raise InvalidRequestError(another)

    def cancel(self, caller: Caller, name: str) -> None:
        """End a job, or take it out of the queue (InvalidRequestError: there is none)."""
        self._change(caller, Cancelled(name))

    def hold(self, caller: Caller, name: str, held: bool) -> None:
        """Take a job's devices away until it is no longer held (InvalidRequestError: there is none)."""
        self._change(caller, Held(name, held))

    def change_policy(self, name: str) -> None:
        """Have another policy decide from now on; jobs keep what it does not change.

        Raises:
            InvalidRequestError: The scheduler is going down.
        """
        if self._closing:
            raise InvalidRequestError(f"policy {name!r}: the cluster is going down")
        self._policy_name, self._policy = name, POLICIES[name]()
        self._ask(PolicyChanged(self._settings.interval))

    def drain(self, node: str) -> str:
        """Take workers off a node, which is about to go, and give it no more; return its id.

        Args:
            node: Ray's id, or its beginning, or an address that no other node has.

        Raises:
            InvalidRequestError: There is no such node, or more than one.
        """
        with self._lock:
            found = [
                name for name in self._machine.nodes if name.startswith(node) or self._hosts.get(name) == node
            ]
        if len(found) != 1:
            nodes = (
                ", ".join(f"{name[:8]} at {self._hosts.get(name)}" for name in self._machine.nodes) or "none"
            )
            raise InvalidRequestError(
                f"node {node!r}: {'more than one' if found else 'none'} is; there are: {nodes}"
            )
        self._ask(NodeLeaving(found[0]))
        return found[0]

    def close(self) -> list[str]:
        """Suspend all jobs, and accept no more; return those that have processes yet."""
        if not self._closing:
            self._closing, self._policy = True, _Nobody()
            self._ask(PolicyChanged(self._settings.interval))
        with self._lock:
            return [name for name, job in self._machine.jobs.items() if job.has_processes]

    def own_jobs(self, caller: Caller) -> list[str] | None:
        """Return the names of the caller's jobs; None for an operator, who has all."""
        if caller.user is None:
            return None
        with self._lock:
            return [name for name, job in self._machine.jobs.items() if caller.may(job.request.owner)]

    def record(self, caller: Caller) -> list[Line]:
        """Return the record of the cluster, in which others' jobs have no names."""
        return visible_record([*self._history.lines], caller)

    def status(self, caller: Caller) -> dict[str, Any]:
        """Return how the cluster is shared, as JSON can hold it; others' jobs have no names."""
        lines = [*self._history.lines]
        past = account(lines, time.time())
        with self._lock:
            status = {
                "policy": self._policy_name,
                "device": str(self._settings.device),
                "folder": str(self._folder),
                "closing": self._closing,
                "trouble": self._trouble,
                **status_of(self._machine, past, self._hosts),
                "log": list(self._lines),
            }
        return visible_status(status, lines, caller)

    def _change(self, caller: Caller, event: Cancelled | Held) -> None:
        # Whoever takes the job's name later comes behind this in the inbox.
        with self._lock:
            check_job(self._machine.jobs, event.job, caller)
            kept = self._put(event)
        kept.result()

    def _ask(self, event: Event) -> None:
        """Have an event handled, and return once that is kept."""
        self._put(event).result()

    def _put(self, event: Event) -> "Future[None]":
        kept: Future[None] = Future()
        self._inbox.put((event, kept))
        return kept

    # -- the loop

    def _run(self) -> None:
        while True:
            try:
                self._turn()
                self._trouble = ""
            except Exception as error:
                # Ray's head may be away for a while, or the disk full.
                if repr(error) != self._trouble:
                    log.exception("the cluster's scheduler is in trouble")
                self._trouble = repr(error)
                time.sleep(_LOOK_SECONDS)

    def _turn(self) -> None:
        """Take in what has come, look at nodes and jobs, and do what follows."""
        try:
            self._tell(*self._inbox.get(timeout=_LOOK_SECONDS))
            while True:
                self._tell(*self._inbox.get_nowait())
        except Empty:
            pass
        self._keep()
        for event in [*self._node_events(), *self._job_events()]:
            self._tell(event)
        if self._machine.next_tick <= time.time():
            self._tell(Tick())
        self._keep()

    def _tell(self, event: Event, kept: "Future[None] | None" = None) -> None:
        with self._lock:
            now, machine = time.time(), self._machine
            why = reasons(event, machine.jobs, self._hosts)
            target = dict(machine.target)
            actions = machine.handle(now, event)
            self._due.append((actions, kept))
            self._changed = self._changed or bool(actions) or not isinstance(event, Tick)
            if isinstance(event, Decided):
                self._say_decision(target)
            self._note(now, why)

    def _keep(self) -> None:
        """Write down what the machine knows, then answer, and ask the policy if it is to be asked.

        Raises:
            OSError: It cannot be written; it is tried again at the next turn.
        """
        if self._changed:
            state = {"policy": self._policy_name, "machine": self._machine.saved()}
            write_secret(self._file, json.dumps(state) + "\n")
            self._changed = False
        self._history.write()
        due, self._due = self._due, []
        for actions, kept in due:
            for action in actions:
                if isinstance(action, Decide):
                    self._thinker.submit(self._decide, action, self._policy)
                elif isinstance(action, Say):
                    self._say(action.text)
            if kept is not None:
                kept.set_result(None)

    def _decide(self, question: Decide, policy: Policy) -> None:
        try:
            answer = Decided(question.number, policy.allocate(question.round).placements)
        except Exception as error:  # noqa: BLE001 - a defect of a policy must not stop the others
            answer = Decided(question.number, None, repr(error))
        self._inbox.put((answer, None))

    # -- what is seen

    def _nodes(self) -> Iterator[Node]:
        """Yield the nodes that are there and have a device."""
        device = self._settings.device
        for node in ray.nodes():  # type: ignore[no-untyped-call]
            devices = int(node["Resources"].get(device.resource, 0.0) / device.amount + 1e-6)
            if node["Alive"] and devices > 0:
                self._hosts[node["NodeID"]] = node["NodeManagerAddress"]
                kinds = [
                    name.partition(":")[2]
                    for name in node["Resources"]
                    if name.startswith("accelerator_type:")
                ]
                yield Node(node["NodeID"], kinds[0] if kinds else device.resource, devices)

    def _node_events(self) -> Iterator[Event]:
        if time.monotonic() - self._looked_at_nodes < _NODES_SECONDS:
            return
        self._looked_at_nodes = time.monotonic()
        known, there = self._machine.nodes, {node.name: node for node in self._nodes()}
        yield from [NodeLost(name) for name in known if name not in there]
        yield from [NodeJoined(node) for name, node in there.items() if name not in known]
        yield from [
            NodeLeaving(name)
            for name in draining_nodes()
            if name in there and name not in self._machine.leaving
        ]

    def _job_events(self) -> Iterator[Event]:
        for name, job in list(self._machine.jobs.items()):
            if job.has_processes:
                try:
                    yield from self._look_at(name, job, self._led.setdefault(name, _Led()))
                except (RayError, InvalidRequestError, OSError) as error:
                    log.warning("job %s: %s", name, error)

    def _look_at(self, name: str, job: LiveJob, led: _Led) -> list[Event]:
        """Ask a job's controller, take its answer, and ask it for what is missing."""
        if led.controller is None:
            return self._find_or_begin(name, job, led)
        if led.asked is None:
            led.asked = led.controller.placed.remote()
        if not ray.wait([led.asked], timeout=0)[0]:
            return []
        reference, led.asked = led.asked, None
        try:
            placed: Placed = ray.get(reference)
        except ActorUnavailableError:
            return []
        except RayError:  # it has ended, and its result says how
            del self._led[name]
            return []
        if placed.finish is not None:
            led.controller.goodbye.remote()
        if placed.finish is not None or placed.attempt != job.attempt:
            del self._led[name]
        if placed.attempt != job.attempt:  # an earlier one, which is about to go
            return []
        if placed.finish is not None:
            return [_end(name, job.attempt, placed.finish.state, placed.finish.reason)]
        if job.state == "ending":
            led.controller.cancel.remote()
        elif job.state == "suspending":
            led.controller.suspend.remote()
        else:
            self._place(job, led, placed)
        return seen(name, job, placed, led.version)

    def _find_or_begin(self, name: str, job: LiveJob, led: _Led) -> list[Event]:
        """Find the controller of a job's attempt, or make it, unless the attempt is over."""
        submission: Submission = pickle.loads(base64.b64decode(job.request.work["submission"]))
        ended = result_of(submission)
        if ended.get("attempt") == job.attempt:
            del self._led[name]
            return [_end(name, job.attempt, ended["state"], ended["reason"])]
        try:
            led.controller = ray.get_actor(actor_name(name), NAMESPACE)
        except ValueError:
            # Where it was begun before, and all of it was lost with the cluster, it goes on, too.
            cluster.submit(replace(submission, resume=True), job.attempt)
        return []

    def _place(self, job: LiveJob, led: _Led, placed: Placed) -> None:
        """Tell a controller which workers the job shall have, unless it knows."""
        wanted = {worker: lease.node for worker, lease in job.kept.items()}
        if wanted != led.workers:
            # What an earlier process of this actor has sent may arrive yet, and is late.
            led.version = max(time.time_ns(), placed.version + 1)
            led.workers = wanted
        if placed.version < led.version:
            led.controller.place.remote(led.version, wanted)

    # -- words

    def _note(self, now: float, why: Mapping[str, str]) -> None:
        """Note in the record and the log what has changed, for these reasons or as the policy has decided."""
        jobs = self._machine.jobs
        others = "the cluster goes down" if self._closing else f"decided by {self._policy_name}"
        over = self._closing and not any(job.has_processes for job in jobs.values())
        nodes = {
            name: (self._hosts.get(name, ""), node.devices)
            for name, node in self._machine.nodes.items()
            if not over
        }
        whys = {name: why.get(name, PAUSED if job.held else others) for name, job in jobs.items()}
        for line in self._history.note(now, jobs, nodes, whys):
            count = sum(line.devices.values())
            has = f" with {count} device{'' if count == 1 else 's'}" if count else ""
            text = f"{line.job} is {line.how or line.state}{has}{line.why and ': '}{line.why}"
            self._say(text, line.owner)

    def _say_decision(self, before: Mapping[str, Placement]) -> None:
        """Log what was decided anew."""
        for name, job in self._machine.jobs.items():
            placement = self._machine.target.get(name, ())
            if sorted(placement) != sorted(before.get(name, ())):
                where = ", ".join(
                    f"{count} on {self._hosts.get(node, node[:8])}" for node, count in placement
                )
                self._say(f"{name} shall have {where or 'no device'}", job.request.owner)

    def _say(self, text: str, owner: str = "") -> None:
        line = f"{datetime.now().isoformat(' ', 'milliseconds')} {text}"
        self._lines.append((owner, line))
        try:
            with (self._folder / LOG_FILE).open("a") as stream:
                stream.write(f"{line}\n")
        except OSError as error:
            log.warning("the cluster's log cannot be written: %s", error)


def seen(name: str, job: LiveJob, placed: Placed, version: int) -> list[Event]:
    """Return what a controller's answer says of the workers of a job.

    Args:
        name: The job's name.
        job: The job, as the machine knows it.
        placed: The answer.
        version: The last placement's; an earlier one's says nothing of workers that are not there.
    """
    events: list[Event] = []
    for worker, lease in job.leases.items():
        if worker not in placed.workers:
            if placed.version >= version:
                events.append(WorkerGone(name, job.attempt, worker))
        elif lease.phase == "starting" and worker in placed.members:
            events.append(WorkerJoined(name, job.attempt, worker))
    return events


def _end(name: str, attempt: int, state: Any, reason: str) -> Event:
    return Suspended(name, attempt) if state == "suspended" else Ended(name, attempt, state, reason)


class SchedulerHandle(cluster.Handle):
    """The scheduler of the cluster that this process is connected to.

    Args:
        token: What each call shows; empty for none.
    """

    def __init__(self, actor: Any, token: str = "") -> None:
        super().__init__("the cluster's scheduler", actor)
        self._token = token

    def ask(self, method: str, *arguments: Any) -> Any:
        """Call one of the scheduler's methods, and return its answer; see `ClusterScheduler.call`."""
        return super().ask("call", self._token, method, *arguments)

    def submit(self, submission: Submission, weight: float) -> None:
        """Have a job wait for its turn; see `ClusterScheduler.submit`."""
        self.ask("submit", submission, weight, uuid.uuid4().hex)

    def end(self) -> None:
        """End the scheduler, whose jobs have no processes any more."""
        ray.kill(self.actor, no_restart=True)


def start(settings: ClusterSettings, keys: TokenKeys | None) -> SchedulerHandle:
    """Start the scheduler of the cluster that this process is connected to; its handle is an operator's.

    Args:
        keys: Keys that callers' tokens are signed with; None where no tokens are asked for.

    Raises:
        InvalidRequestError: It has one.
        UnavailableError: It cannot begin.
    """
    actor = ray.remote(ClusterScheduler).options(
        name=_NAME,
        namespace=NAMESPACE,
        lifetime="detached",
        num_cpus=0,
        resources={cluster.HEAD_RESOURCE: 0.001},
        max_concurrency=64,
        max_restarts=-1,
        max_task_retries=-1,
    )
    expires = int(time.time() + _STARTER_SECONDS)
    token = issue(keys, OPERATOR, expires, Purpose.CLUSTER) if keys is not None else ""
    try:
        return SchedulerHandle(actor.remote(settings, keys.current() if keys is not None else ()), token)
    except ValueError as error:
        raise InvalidRequestError("the cluster has a scheduler: `evenpace cluster status`") from error


def find(token: str = "") -> SchedulerHandle:
    """Return the scheduler of the connected cluster, to be called with a token.

    Raises:
        UnavailableError: It has none.
    """
    try:
        return SchedulerHandle(ray.get_actor(_NAME, NAMESPACE), token)
    except ValueError as error:
        raise UnavailableError("the cluster has no scheduler: `evenpace cluster up` starts it") from error


def running_jobs(token: str) -> list[str]:
    """Return the names of the jobs that run on the connected cluster, and that a token's holder may change.

    Where a scheduler asks for tokens, a user's are those that they have submitted to it.

    Raises:
        UnauthorisedError: The scheduler asks for a token, and this one is missing or not valid.
        UnavailableError, DeadlineExceededError: The scheduler cannot be asked.
    """
    names = cluster.jobs()
    try:
        scheduler = find(token)
    except UnavailableError:
        return names
    own = scheduler.ask("own_jobs")
    return names if own is None else [name for name in names if name in own]


def sharing(name: str, token: str) -> SchedulerHandle | None:
    """Return the connected cluster's scheduler if it has a job that has not ended, and is the token holder's.

    Raises:
        UnauthorisedError, UnavailableError, DeadlineExceededError: As `running_jobs`.
    """
    try:
        scheduler = find(token)
    except UnavailableError:
        return None
    own = scheduler.ask("own_jobs")
    open_jobs = [job["job"] for job in scheduler.ask("status")["jobs"] if job["state"] != "ended"]
    return scheduler if name in open_jobs and (own is None or name in own) else None


_NAME = actor_name("", "scheduler")
