"""Lets scheduled faults come true on a cluster, verifies that each did, and ends them again."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evenpace.chaos import processes
from evenpace.chaos.cluster import Cluster
from evenpace.chaos.injections import Cut, Freeze, FullDisk, HalfOpen, Injection, Kill, Slow, clock_jump
from evenpace.chaos.schedule import KINDS, Fault

_EVIDENCE_SECONDS = 60.0  # that a fault may last longer, until there is evidence of it
_PATIENCE_SECONDS = 30.0  # for which a fault waits for something that it can befall


@dataclass
class Active:
    """A fault under way, or over.

    Attributes:
        fault: As scheduled.
        target: What it befell.
        injection: What brought it about.
        began: By the monotonic clock.
        ended: Likewise; None while it is under way.
        evidence: That it fired; None if there is none.
    """

    fault: Fault
    target: str
    injection: Injection
    began: float
    ended: float | None = None
    evidence: str | None = None


class Storm:
    """The faults of a run; `tick` is to be called often.

    Args:
        cluster: That they befall.
        faults: In the order of their times.
        log: A file for JSON lines, one for each fault that is over.

    Attributes:
        active: Under way.
        over: Those that are over.
        without_target: Faults that found nothing to befall, such as a link that nothing was sent through.
    """

    def __init__(self, cluster: Cluster, faults: Iterator[Fault], log: Path) -> None:
        self._cluster = cluster
        self._faults = faults
        self._log = log
        self._began = time.monotonic()
        self._next = next(faults, None)
        self._waiting: list[Fault] = []
        self._delay = 0.0  # seconds for which faults were held back
        self._ticked = self._began
        self.active: list[Active] = []
        self.over: list[Active] = []
        self.without_target: list[Fault] = []

    @property
    def done(self) -> bool:
        """Whether all faults have come and gone."""
        return self._next is None and not self._waiting and not self.active

    def tick(self, *, hold: bool = False) -> None:
        """Begin what is due, unless faults are to be held back, and end what has lasted."""
        now = time.monotonic()
        self._delay += now - self._ticked if hold else 0.0
        self._ticked = now
        elapsed = now - self._began - self._delay
        while self._next is not None and self._next.at <= elapsed:
            self._waiting.append(self._next)
            self._next = next(self._faults, None)
        if not hold:
            self._waiting = [fault for fault in self._waiting if not self._settle(fault, elapsed)]
        for active in list(self.active):
            self._look(active)
            limit = active.fault.seconds + (0.0 if active.evidence else _EVIDENCE_SECONDS)
            if now - active.began >= limit:
                self._end(active)

    def end(self) -> None:
        """Let no more faults come, but for one of each kind that is still to come for the first time.

        Of these, there are some where this process was held up. Those under way last as they should.
        """
        begun = [one.fault for one in (*self.active, *self.over)]
        come = {fault.kind for fault in (*begun, *self.without_target)}
        due = [*self._waiting, *filter(None, [self._next]), *self._faults]
        first: dict[str, Fault] = {}
        for fault in due:
            if fault.kind not in come:
                first.setdefault(fault.kind, fault)
        self._next, self._waiting = None, list(first.values())

    def lift(self) -> None:
        """End all faults at once; those without evidence do not count."""
        self._next, self._waiting = None, []
        for active in list(self.active):
            self._end(active, counts=active.evidence is not None)

    def unheard(self, worker: str, since: float, until: float) -> float:
        """Seconds of faults between two moments that may have kept a worker from being heard."""
        return sum(
            max(0.0, min(one.ended or until, until) - max(one.began, since))
            for one in (*self.active, *self.over)
            if one.target.partition(">")[0] in (worker, "manager")
        )

    def _settle(self, fault: Fault, elapsed: float) -> bool:
        """Begin a fault, or give it up; False if it is to be tried again."""
        target = next((name for name in fault.targets if self._possible(fault.kind, name)), None)
        if target is not None:
            injection = self._inject(fault, target)
            self.active.append(Active(fault, target, injection, time.monotonic()))
            return True
        if elapsed - fault.at > _PATIENCE_SECONDS:
            self.without_target.append(fault)
            return True
        return False

    def _possible(self, kind: str, name: str) -> bool:
        """Whether a fault of this kind can befall it now."""
        site = KINDS[kind].site
        if any(one.target == name and KINDS[one.fault.kind].site == site for one in self.active):
            return False
        if site == "link":
            return bool(self._cluster.proxy.links[name].connections)
        if site == "disk":
            return True
        pid = self._cluster.supervisor.processes[name].pid
        return pid is not None and processes.state(pid) in ("R", "S", "D")

    def _inject(self, fault: Fault, name: str) -> Injection:
        cluster = self._cluster
        match fault.kind:
            case "kill":
                return Kill(fault, cluster.supervisor, name)
            case "freeze" | "long-freeze":
                return Freeze(cluster.supervisor, name)
            case "cut":
                return Cut(fault, cluster.proxy, cluster.proxy.links[name])
            case "stall" | "throttle":
                return Slow(fault, cluster.proxy, cluster.proxy.links[name], stall=fault.kind == "stall")
            case "half-open":
                return HalfOpen(fault, cluster.proxy, cluster.proxy.links[name])
            case "disk":
                return FullDisk(cluster.disks[name])
            case _:
                return clock_jump(fault, cluster.supervisor, name)

    def _look(self, active: Active) -> None:
        if active.evidence is None or KINDS[active.fault.kind].site == "disk":  # what is deleted makes room
            active.evidence = active.injection.fired()

    def _end(self, active: Active, *, counts: bool = True) -> None:
        moot = active.evidence is None and active.injection.moot
        active.injection.lift()
        active.ended = time.monotonic()
        self.active.remove(active)
        if moot or not counts:
            self.without_target.append(active.fault)
            return
        self.over.append(active)
        with self._log.open("a") as file:
            file.write(json.dumps(self.line(active)) + "\n")

    def line(self, active: Active) -> dict[str, object]:
        """What is said of a fault in files."""
        ended = time.monotonic() if active.ended is None else active.ended
        return {
            "number": active.fault.number,
            "time": round(active.began - self._began, 3),
            "kind": active.fault.kind,
            "target": active.target,
            "seconds": round(ended - active.began, 3),
            "evidence": active.evidence,
        }
