"""A check of a Ray cluster that jobs are to run on."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evenpace.doctor.findings import Finding, Subject, note, ok, problem, warning
from idl.version import __version__

_PROBE_SECONDS = 50.0
_CLOCKS_APART = 1.0  # seconds
_LAST_LINES = 3  # of what a probe that failed has said


def cluster(subject: Subject) -> Iterator[Finding]:
    """Check the cluster, in a process of its own."""
    address = subject.ray or "auto"
    about = f"Ray {address}"
    line = [sys.executable, "-m", "evenpace.doctor.ray_probe", address, str(subject.storage)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        advice = "look at `ray status` there: its head or a node may be overloaded, or hang"
        yield problem(about, f"it did not answer within {_PROBE_SECONDS:g} s", advice)
        return
    try:
        found = json.loads(done.stdout)
    except ValueError:
        said = " ".join(done.stderr.split("\n")[-_LAST_LINES:])
        yield problem(about, f"the look at it ended with status {done.returncode}: {said}", _INSTALL)
        return
    yield from judge(found, about, str(subject.storage))


_INSTALL = "install what jobs on Ray need: pip install 'evenpace[ray]'"


def judge(found: Mapping[str, Any], about: str, storage: str) -> Iterator[Finding]:
    """Judge what `ray_probe` has found.

    Args:
        found: The probe's output.
        about: The cluster, for findings.
        storage: Where jobs have their folders.
    """
    if found.get("missing"):
        yield problem(about, "Ray is not installed here", _INSTALL)
        return
    if "error" in found:
        advice = "start the cluster (`ray start --head`), or give its address and its token (docs/ray.md)"
        yield problem(about, found["error"], advice)
        return
    nodes: Sequence[Mapping[str, Any]] = found["nodes"]
    yield ok(about, f"{_count(len(nodes), 'node')}, Ray {found['version']}")
    if any(not node["answer"]["tokens"] for node in nodes if node["answer"]):
        yield warning(
            about,
            "nodes of it ask for no token: whoever reaches its ports may run code there",
            "set RAY_AUTH_MODE=token, and start all nodes again; see docs/ray.md",
        )
    for node in nodes:
        yield from _node(node)
    yield from _storage(found["storage"], nodes, about, storage)
    if found["jobs"]:
        yield note(about, f"jobs of evenpace run there: {', '.join(found['jobs'])}")


def _node(node: Mapping[str, Any]) -> Iterator[Finding]:
    about, answer = _name(node), node["answer"]
    if answer is None:
        yield problem(
            about, node["error"], "look at its logs, in /tmp/ray/session_latest/logs of that machine"
        )
        return
    if node["goes"]:
        yield note(about, "it is about to go; jobs leave it")
    if answer["evenpace"] is None:
        yield problem(about, "evenpace is not installed there", f"install evenpace {__version__} on it")
    elif answer["evenpace"] != __version__:
        found = f"it has evenpace {answer['evenpace']}; this machine has {__version__}"
        yield problem(about, found, "install the same version on all nodes")
    frameworks = [f"{name} {version}" for name, version in answer["frameworks"].items() if version]
    if not frameworks:
        yield problem(
            about,
            "it has none of torch, keras and jax",
            "install the framework of your scripts (docs/frameworks.md)",
        )
    apart = answer["clock_error"]
    if apart > _CLOCKS_APART:
        yield warning(
            about,
            f"its clock and this machine's are {apart:.1f} s apart",
            "synchronise clocks (NTP): certificates and tokens are valid by them",
        )
    amounts = {name: node["resources"].get(name, 0) for name in ("CPU", "GPU")}
    has = (
        ", ".join(f"{_count(round(amount), name)}" for name, amount in amounts.items() if amount) or "no CPU"
    )
    yield ok(
        about, f"{has} for workers, Python {answer['python']}, {', '.join(frameworks) or 'no framework'}"
    )


def _storage(
    seen: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]], about: str, storage: str
) -> Iterator[Finding]:
    if seen["error"]:
        yield problem(
            about, f"jobs cannot have their folders in {storage}: {seen['error']}", "give another --storage"
        )
    elif apart := [_name(node) for node in nodes if node["id"] in seen["apart"]]:
        yield warning(
            about,
            f"{storage} is not on a disk that all nodes share: {', '.join(apart)} did not see a file there",
            "give a shared folder as --storage: else a service that moves does not find its state",
        )
    elif len(nodes) > 1:
        yield ok(about, f"{storage} is shared by all nodes")
    else:
        yield note(about, f"{storage} is on its only node; further nodes must share it")


def _name(node: Mapping[str, Any]) -> str:
    return f"Ray node {node['host']} ({node['id'][:6]})"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
