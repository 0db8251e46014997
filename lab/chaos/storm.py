"""Storm: causes the scheduled faults on a cluster, verifies that each fired, and ends them."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from idl.bounds import Bounds
from lab.chaos import damage, injections
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.fault_schedule import KINDS, MANAGER, Fault, links_of, sides_of, touched
from lab.chaos.rank_links import Apart
from lab.chaos.reference_training import LEAST, ORDERED
from lab.proxy import ProxyLink
from rpc.processes import state

_UNTIL_OUT = "freeze-until-out"
_NEEDS_CHECKPOINTS = ("bit-flip", "lost-file")  # kinds whose target takes a job that goes on
# Kinds whose evidence does.
_AWAITS_THE_JOB = (*_NEEDS_CHECKPOINTS, _UNTIL_OUT, "join", "drain", "rank-black-hole", "rank-partition")
# Kinds after which a worker may count as dead: it ends, or its connection, or it is frozen while the manager
# is killed and started again.
_TAKE_OUT = ("kill", "drain", "cut", "half-open", "black-hole", "partition", _UNTIL_OUT)
_RETURN_SECONDS = 15.0  # seconds after such a fault in which a worker that lives is certain to have come back
# Seconds that a fault may last longer, until there is evidence of it: a busy machine starts processes slowly.
_EVIDENCE_SECONDS = 240.0
# Seconds without other faults within which a frozen worker must be out, or one come or go.
_OUT_SECONDS = 90.0
_PATIENCE_SECONDS = 30.0  # seconds for which a fault waits for a target that it can befall
_LAST_SECONDS = 240.0  # seconds for which the only one of its kind is tried when the time is up


@dataclass
class Active:
    """A fault under way, or over."""

    fault: Fault  # the scheduled fault
    target: str  # target that it befell
    injection: injections.Injection  # causes it
    began: float  # when it began, by the monotonic clock
    ended: float | None = None  # when it ended, likewise; None while it is under way
    evidence: str | None = None  # evidence that it fired; None if there is none


class Storm:
    """The faults of a run; `tick` is to be called often."""

    def __init__(self, cluster: ChaosCluster, faults: Iterator[Fault], log: Path) -> None:
        self._cluster = cluster
        self._faults = faults
        self._log = log
        self._began = time.monotonic()
        self._next = next(faults, None)
        self._waiting: list[Fault] = []
        self._delay = 0.0  # seconds for which faults were held back
        self._elapsed = 0.0  # seconds for which they were not
        self._ticked = self._began
        self._disturbed = self._began  # when there was last a fault of another kind than these
        self.active: list[Active] = []
        self.over: list[Active] = []  # faults that are over
        # Faults that found nothing to befall, such as a link through which nothing was sent.
        self.without_target: list[Fault] = []
        self._ended = False  # whether all that is left are kinds of which none has befallen anything

    @property
    def done(self) -> bool:
        """Return whether all faults are over."""
        return self._next is None and not self._waiting and not self.active

    def tick(self, *, hold: bool = False) -> None:
        """Begin the faults that are due, unless they are to be held back, and end those that have lasted."""
        now = time.monotonic()
        self._delay += now - self._ticked if hold else 0.0
        self._ticked = now
        self._elapsed = now - self._began - self._delay
        while self._next is not None and self._next.at <= self._elapsed:
            self._waiting.append(self._next)
            self._next = next(self._faults, None)
        if not hold:
            self._waiting = [fault for fault in self._waiting if not self._settle(fault)]
        if any(one.fault.kind not in _AWAITS_THE_JOB for one in self.active):
            self._disturbed = now
        for active in list(self.active):
            self._look(active)
            since, limit = active.began, active.fault.seconds
            if not active.evidence and active.fault.kind in _AWAITS_THE_JOB:
                since, limit = max(since, self._disturbed), limit + _OUT_SECONDS
            elif not active.evidence:
                limit += _EVIDENCE_SECONDS
            if now - since >= limit and (active.fault.kind != "join" or self._may_leave(active.target)):
                self._end(active)

    def end(self) -> None:
        """Drop the faults to come, but for one of each kind that has not befallen anything yet.

        There are such kinds where this process was held up, or where other faults were in the way. Such a one
        is tried again and again, for minutes. Faults under way last as scheduled.
        """
        left = (*self._waiting, *filter(None, [self._next]), *self._faults, *self.without_target)
        self._next, self._ended = None, True
        self._waiting = [replace(fault, at=self._elapsed) for fault in self._first_of_each(left)]

    def lift(self) -> None:
        """End all faults at once; those without evidence do not count."""
        self._next, self._waiting = None, []
        for active in list(self.active):
            self._end(active, counts=active.evidence is not None)

    @property
    def long(self) -> bool:
        """Return whether a fault is under way that may stop the job for minutes."""
        return any(KINDS[one.fault.kind].of_all_scales for one in self.active)

    def seconds_unreachable(self, worker: str, since: float, until: float) -> float:
        """Return the seconds between two moments in which faults may have kept a worker's messages away."""
        return sum(
            max(0.0, min(one.ended or until, until) - max(one.began, since))
            for one in (*self.active, *self.over)
            if KINDS[one.fault.kind].site not in ("guest", "ranks", "operator")
            and {worker, MANAGER} & set(_workers_in(one.target))
        )

    def _settle(self, fault: Fault) -> bool:
        """Begin a fault, or give it up; return False if it is to be tried again."""
        target = next((name for name in fault.targets if self._possible(fault.kind, name)), None)
        if target is not None:
            injection = self._inject(fault, target)
            self.active.append(Active(fault, target, injection, time.monotonic()))
            return True
        patience = _OUT_SECONDS if fault.kind in _NEEDS_CHECKPOINTS else _PATIENCE_SECONDS
        if self._ended:
            patience = _LAST_SECONDS
        if self._elapsed - fault.at > patience:
            self.without_target.append(fault)
            return True
        return False

    def _possible(self, kind: str, name: str) -> bool:
        site = KINDS[kind].site
        if any(touched(one.fault.kind, one.target) & touched(kind, name) for one in self.active):
            return False
        if kind in _TAKE_OUT and name != MANAGER and not self._leaves_the_state(name):
            return False
        if site == "ranks":
            running = self._cluster.supervisor.running("worker")
            training = {process.name for process in running if self._cluster.trains(process)}
            return all(training & set(side) for side in sides_of(name))
        if site == "link":
            return any(link.connections for link in self._links(name).values())
        if site == "disk":
            return True
        if site == "writes":  # a manager cannot start meanwhile
            return name != MANAGER or self._is_up(name)
        if kind == "foreign-state":  # a service that ends would leave its folder to the other
            return self._is_up(name.partition(">")[2])
        process = self._cluster.supervisor.processes[name]
        if site == "guest":
            return not process.is_running
        stays = process in self._cluster.supervisor.staying(process.role)
        if not stays or state(process.pid) not in ("R", "S", "D"):
            return False
        if kind == "freeze-until-out":  # other workers must be left to take over its part
            frozen = sum(one.fault.kind == kind for one in self.active)
            if frozen >= self._cluster.settings.workers - 1:
                return False
        if kind in _NEEDS_CHECKPOINTS:
            return self._cluster.copy_to_lose(name) is not None
        if kind not in ("freeze-until-out", "impostor", "drain", "batch-size", "bounds"):
            return True
        if process.role == "worker":  # one not heard of neither falls silent nor has its name in use
            return self._cluster.member_state(name) in ("working", "waiting")
        return self._cluster.listening(name)

    def _is_up(self, service: str) -> bool:
        """Return whether a service listens, and was not asked to end."""
        process = self._cluster.supervisor.processes[service]
        stays = process in self._cluster.supervisor.staying(process.role)
        return stays and self._cluster.listening(service)

    def _may_leave(self, guest: str) -> bool:
        """Return whether a guest may leave: no other fault is befalling it, and others have its state."""
        busy = any(touched("kill", guest) & touched(one.fault.kind, one.target) for one in self.active)
        return not busy and self._leaves_the_state(guest)

    def _leaves_the_state(self, name: str) -> bool:
        """Return whether another worker is left with the job's state if a target's workers are taken out.

        It must be one that no such fault has befallen of late.
        """
        since = time.monotonic() - _RETURN_SECONDS
        # Who was killed or drained and has trained since has its state again.
        late = [
            one for one in self.over if KINDS[one.fault.kind].site == "link" and (one.ended or 0.0) > since
        ]
        names = (name, *(one.target for one in (*self.active, *late) if one.fault.kind in _TAKE_OUT))
        return self._cluster.can_lose({worker for name in names for worker in _workers_in(name)})

    def _links(self, name: str) -> dict[str, ProxyLink]:
        return {link: self._cluster.proxy.links[link] for link in links_of(name)}

    def _inject(self, fault: Fault, name: str) -> injections.Injection:
        cluster, proxy = self._cluster, self._cluster.proxy
        supervisor, processes = cluster.supervisor, cluster.supervisor.processes
        match fault.kind:
            case "kill":
                return injections.Kill(fault, supervisor, name)
            case "freeze" | "long-freeze":
                return injections.Freeze(processes[name])
            case "freeze-until-out":
                return injections.FreezeUntilOut(processes[name], cluster.member_state)
            case "join":
                return injections.Join(supervisor, name, cluster.trains)
            case "drain":
                return injections.Drain(fault, supervisor, name, cluster.drain)
            case "rank-black-hole" | "rank-partition":
                one, other = ({worker: cluster.ears[worker] for worker in side} for side in sides_of(name))
                return Apart(one, other)
            case "bit-flip":
                flip = partial(damage.flip_bit, place=fault.amount)
                find = partial(cluster.copy_to_lose, name)
                noticed = "version {version} cannot be read"
                return injections.Damage(fault, supervisor, name, find, flip, noticed)
            case "lost-file":
                find = partial(cluster.copy_to_lose, name)
                return injections.Damage(fault, supervisor, name, find, damage.remove, None)
            case "state-bit-flip":
                harm = partial(damage.flip_saved_bit, cluster.state(name), fault.amount)
                return injections.StateDamage(fault, supervisor, name, harm)
            case "impostor":
                return injections.Impostor(processes[name])
            case "foreign-state":
                service, owner = name.split(">")
                return injections.foreign_state(processes[service], cluster.state(owner))
            case "cut":
                return injections.LinkCut(fault, proxy, proxy.links[name])
            case "stall" | "throttle":
                return injections.Slow(fault, proxy, proxy.links[name], stall=fault.kind == "stall")
            case "half-open":
                return injections.HalfOpen(fault, proxy, proxy.links[name])
            case "partition" if fault.amount < 0.5:
                links = self._links(name).items()
                stalls = {key: injections.Slow(fault, proxy, link, stall=True) for key, link in links}
                return injections.Together(stalls)
            case "black-hole" | "partition":
                links = self._links(name).items()
                return injections.Together({key: injections.BlackHole(proxy, link) for key, link in links})
            case "disk":
                return injections.Caused(cluster.disks[name].fill, cluster.disks[name].clear)
            case "batch-size":
                size = LEAST + int(fault.amount * (ORDERED - LEAST))
                return injections.Order(partial(cluster.order_batch_size, name, size), size=size)
            case "bounds":
                bounds = cluster.drawn_bounds(fault.amount)
                order = partial(cluster.order_bounds, name)
                return injections.Order(partial(order, bounds), partial(order, Bounds()))
            case "failing-writes":
                return injections.BadDisk(cluster.writes[name])
            case _:
                return injections.clock_jump(fault, processes[name])

    def _first_of_each(self, faults: Iterable[Fault]) -> list[Fault]:
        """Return the first fault of each kind of which none is under way or over."""
        begun = {one.fault.kind for one in (*self.active, *self.over)}
        first: dict[str, Fault] = {}
        for fault in faults:
            if fault.kind not in begun:
                first.setdefault(fault.kind, fault)
        return list(first.values())

    def _look(self, active: Active) -> None:
        # What is deleted makes room; and the writes that fail are counted.
        if active.evidence is None or KINDS[active.fault.kind].site in ("disk", "writes"):
            active.evidence = active.injection.fired()

    def _end(self, active: Active, *, counts: bool = True) -> None:
        moot = active.evidence is None and active.injection.is_moot
        active.injection.lift()
        active.ended = time.monotonic()
        self.active.remove(active)
        if moot or not counts:
            self.without_target.append(active.fault)
            if self._ended and counts and self._elapsed - active.fault.at <= _LAST_SECONDS:
                self._waiting += self._first_of_each([active.fault])
            return
        self.over.append(active)
        with self._log.open("a") as file:
            file.write(json.dumps(self.line(active)) + "\n")

    def line(self, active: Active) -> dict[str, object]:
        """Return a fault's line in files, for JSON."""
        ended = time.monotonic() if active.ended is None else active.ended
        return {
            "number": active.fault.number,
            "time": round(active.began - self._began, 3),
            "kind": active.fault.kind,
            "target": active.target,
            "seconds": round(ended - active.began, 3),
            "evidence": active.evidence,
        }


def _workers_in(name: str) -> list[str]:
    return name.partition(">")[0].split(",")
