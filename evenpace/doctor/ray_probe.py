"""A program that looks at a Ray cluster from within, and prints what it finds as JSON.

It is a process of its own, since Ray's connection is one per process, takes signals, and may hang. It does
not judge; see `evenpace.doctor.ray_cluster`.
"""

import contextlib
import json
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_NODE_SECONDS = 20.0  # for all nodes to answer; a new process of Ray's starts on each


def look_at_node() -> dict[str, Any]:
    """Return what a node says about itself; it runs there, and needs nothing of ours."""
    import importlib.metadata
    import os
    import platform

    def version(package: str) -> str | None:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {
        "python": platform.python_version(),
        "ray": version("ray"),
        "evenpace": version("evenpace"),
        "frameworks": {name: version(name) for name in ("torch", "keras", "jax")},
        "tokens": os.environ.get("RAY_AUTH_MODE") == "token",
    }


def read_clock() -> float:
    """Return a node's clock, in seconds since 1970."""
    import time

    return time.time()


def write_mark(folder: str, name: str) -> list[str]:
    """Write a file in a folder on a node, or in the nearest above it that exists; returns its path.

    Raises:
        OSError: It cannot be written.
    """
    from pathlib import Path

    where = Path(folder).absolute()
    while not where.exists():
        where = where.parent
    (where / name).write_bytes(b"")
    return [str(where / name)]


def has_mark(path: str) -> bool:
    """Return whether a node sees the file."""
    from pathlib import Path

    return Path(path).exists()


def remove_mark(path: str) -> None:
    """Remove the file."""
    from pathlib import Path

    Path(path).unlink(missing_ok=True)


def look(address: str, storage: str) -> dict[str, Any]:
    """Return what a cluster and its nodes say.

    Args:
        address: The cluster's.
        storage: Where jobs have their folders.

    Raises:
        UnavailableError: The cluster cannot be reached.
    """
    import ray

    from scheduler.ray import cluster
    from scheduler.ray.nodes import draining_nodes

    with cluster.connection(address) as where:
        draining = draining_nodes()
        alive = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        names = [node["NodeID"] for node in alive]
        answers = _on_nodes(dict.fromkeys(names, ()), look_at_node)
        nodes = []
        for node in alive:
            answer = answers.get(node["NodeID"])
            if isinstance(answer, dict):
                answer["clock_error"] = _clock_error(node["NodeID"])
            nodes.append(
                {
                    "host": node["NodeManagerAddress"],
                    "id": node["NodeID"],
                    "resources": node["Resources"],
                    "goes": node["NodeID"] in draining,
                    "answer": answer if isinstance(answer, dict) else None,
                    "error": answer if isinstance(answer, str) else "",
                }
            )
        answered = [node["id"] for node in nodes if node["answer"]]
        return {
            "address": where,
            "version": ray.__version__,
            "nodes": nodes,
            "jobs": cluster.jobs(),
            "storage": _look_at_storage(answered, storage),
        }


def _clock_error(node: str) -> float:
    """Return by how many seconds, at least, a node's clock is before or behind this machine's."""
    asked = time.time()
    clock = _on_nodes({node: ()}, read_clock)[node]
    answered = time.time()
    return max(0.0, asked - clock, clock - answered) if isinstance(clock, float) else 0.0


def _look_at_storage(nodes: Sequence[str], folder: str) -> dict[str, Any]:
    """Return which nodes do not see what the first has written, or why that could not write."""
    if not nodes:
        return {"error": "", "apart": []}
    first, *others = nodes
    written = _on_nodes({first: (folder, f".evenpace-doctor-{uuid.uuid4().hex}")}, write_mark)[first]
    if not isinstance(written, list):
        return {"error": written, "apart": []}
    seen = _on_nodes(dict.fromkeys(others, (written[0],)), has_mark)
    _on_nodes({first: (written[0],)}, remove_mark)
    return {"error": "", "apart": [node for node, there in seen.items() if there is not True]}


def _on_nodes(arguments: Mapping[str, tuple[str, ...]], function: Any) -> dict[str, Any]:
    """Call a function on nodes, with arguments by the node's id; the answers, or errors in words."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(function)
    asked = {
        node: remote.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False), max_retries=0
        ).remote(*own)
        for node, own in arguments.items()
    }
    ready = (
        set(ray.wait([*asked.values()], num_returns=len(asked), timeout=_NODE_SECONDS)[0]) if asked else ()
    )
    answers: dict[str, Any] = {}
    for node, reference in asked.items():
        if reference not in ready:
            answers[node] = f"it did not answer within {_NODE_SECONDS:g} s"
            continue
        try:
            answers[node] = ray.get(reference)
        except RayError as error:
            answers[node] = str(error).strip().splitlines()[-1]
    return answers


def main() -> None:
    """Print what is found, or the error, as JSON."""
    address, storage = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr):
        try:
            found = look(address, str(Path(storage).expanduser()))
        except ImportError:
            found = {"missing": True}
        except Exception as error:  # noqa: BLE001 - whatever it is, the doctor tells it
            found = {"error": str(error)}
    print(json.dumps(found))  # noqa: T201 - read by the doctor


if __name__ == "__main__":
    main()
