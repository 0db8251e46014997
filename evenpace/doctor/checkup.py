"""A run of all checks at once, each in limited time."""

import threading
import time
from collections.abc import Mapping
from functools import partial

from evenpace.doctor import (
    clock,
    container_engine,
    gpu,
    local_network,
    machine,
    ray_cluster,
    resource_limits,
    secrets,
    service_checks,
    state_folder,
    versions,
)
from evenpace.doctor.findings import Check, Finding, Subject, problem

_SECONDS = 8.0  # for a check of this machine; what it waits for has a shorter time-out
_RAY_SECONDS = 60.0  # for a check of a Ray cluster, which starts a process on each node
_STEPS = 6  # of a check of a service, each with the subject's time-out: name, addresses, TLS, calls

CHECKS: Mapping[str, Check] = {
    "packages": versions.packages_hidden,
    "versions": versions.versions,
    "torch": versions.torch_build,
    "certificates": secrets.certificates,
    "token": secrets.token,
    "clock": clock.synchronised,
    "time": clock.steady,
    "open files": resource_limits.open_files,
    "processes": resource_limits.processes,
    "CPU": resource_limits.cpu,
    "CPU limits": resource_limits.cpu_limits,
    "threads": resource_limits.threads,
    "memory": resource_limits.memory,
    "shared memory": resource_limits.shared_memory,
    "swap": machine.swap,
    "load": machine.load,
    "frequency": machine.governor,
    "state": state_folder.state,
    "GPU": gpu.gpu,
    "loopback": local_network.loopback,
    "own name": local_network.own_name,
    "interfaces": local_network.interfaces,
    "ports": local_network.ports,
    "containers": container_engine.engine,
}


def run(subject: Subject, checks: Mapping[str, Check] | None = None) -> list[Finding]:
    """Run all checks and return their findings, in the order of the checks.

    Args:
        subject: The machine and the services to check.
        checks: The checks by name; None: `CHECKS`, one for each service, and one for a Ray cluster.
    """
    seconds = dict.fromkeys(CHECKS if checks is None else checks, _SECONDS)
    every = dict(CHECKS if checks is None else checks)
    if checks is None:
        for name, check in _of_services(subject).items():
            every[name], seconds[name] = check, _STEPS * subject.timeout
        if subject.ray is not None:
            every["Ray"], seconds["Ray"] = ray_cluster.cluster, _RAY_SECONDS
    running = {name: _Running(name, check, subject) for name, check in every.items()}
    begun = time.monotonic()
    found = []
    for name, one in running.items():
        found += one.findings(begun + seconds[name], seconds[name])
    return found


def _of_services(subject: Subject) -> dict[str, Check]:
    called: dict[str, Check] = {}
    if subject.manager is not None:
        called[f"manager {subject.manager}"] = partial(service_checks.manager, address=subject.manager)
    for shard in subject.shards:
        called[f"shard {shard}"] = partial(service_checks.shard, address=shard)
    if len(subject.shards) > 1:
        called["shards"] = service_checks.each_shard_once
    if subject.partitions is not None:
        called[f"partitions {subject.partitions}"] = partial(
            service_checks.partitions, address=subject.partitions
        )
    return called


class _Running:
    """A check in a thread of its own, which is left alone if it hangs, as on a dead disk."""

    def __init__(self, name: str, check: Check, subject: Subject) -> None:
        self._name = name
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=self._run, args=(check, subject), daemon=True)
        self._thread.start()

    def findings(self, deadline: float, seconds: float) -> list[Finding]:
        """Return the findings up to the deadline, in seconds of the monotonic clock."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        found = list(self._found)
        if self._thread.is_alive():
            found.append(
                problem(
                    self._name,
                    f"the check did not end within {seconds:g} s",
                    "see what hangs there: a disk, a name server, or a machine that is overloaded",
                )
            )
        return found

    def _run(self, check: Check, subject: Subject) -> None:
        try:
            for finding in check(subject):
                self._found.append(finding)
        except Exception as error:  # noqa: BLE001 - any failure is a finding, and other checks go on
            self._found.append(
                problem(
                    self._name,
                    f"the check failed: {type(error).__name__}: {error}",
                    "tell evenpace's developers; what this check looks at is not known",
                )
            )
