"""The findings of `evenpace doctor` about Ray clusters, from what its probe has seen of them."""

import copy

import pytest

from evenpace.doctor.ray_cluster import judge
from idl.version import __version__

ABOUT, STORAGE = "Ray auto", "/mnt/results"


def node(number):
    """What the probe has seen of a node where all is well."""
    return {
        "host": f"10.0.0.{number}",
        "id": f"{number}" * 8,
        "resources": {"CPU": 4.0, "GPU": 1.0, "memory": 1e9},
        "goes": False,
        "answer": {
            "python": "3.11.7",
            "ray": "2.60.0",
            "evenpace": __version__,
            "frameworks": {"torch": "2.13.0", "keras": None, "jax": None},
            "tokens": True,
            "clock_error": 0.01,
        },
        "error": "",
    }


WELL = {
    "address": "10.0.0.1:6379",
    "version": "2.60.0",
    "nodes": [node(1), node(2)],
    "jobs": [],
    "storage": {"error": "", "apart": []},
}


def judged(change):
    """The findings once something is not well: level, subject and text of each."""
    seen = copy.deepcopy(WELL)
    change(seen)
    return [(one.level, one.subject, one.found) for one in judge(seen, ABOUT, STORAGE)]


def test_a_cluster_that_is_well():
    """Each node is told of, and that they share the disk."""
    about = "4 CPUs, 1 GPU for workers, Python 3.11.7, torch 2.13.0"
    assert judged(lambda seen: None) == [
        ("ok", ABOUT, "2 nodes, Ray 2.60.0"),
        ("ok", "Ray node 10.0.0.1 (111111)", about),
        ("ok", "Ray node 10.0.0.2 (222222)", about),
        ("ok", ABOUT, "/mnt/results is shared by all nodes"),
    ]


def change(*path, **values):
    """A function that changes what the probe has seen of a part."""

    def make(seen):
        for key in path:
            seen = seen[key]
        seen.update(values)

    return make


ONE, TWO = (f"Ray node 10.0.0.{number} ({str(number) * 6})" for number in (1, 2))
APART = f"{STORAGE} is not on a disk that all nodes share: {TWO} did not see a file there"
NO_TOKEN = "nodes of it ask for no token: whoever reaches its ports may run code there"
READ_ONLY = "OSError: [Errno 30] Read-only file system"
SLOW = "it did not answer within 20 s"


@pytest.mark.parametrize(
    ("change", "level", "subject", "found"),
    [
        (change("nodes", 1, "answer", evenpace=None), "problem", TWO, "evenpace is not installed there"),
        (
            change("nodes", 1, "answer", evenpace="0.0.9"),
            "problem",
            TWO,
            f"it has evenpace 0.0.9; this machine has {__version__}",
        ),
        (change("nodes", 0, answer=None, error=SLOW), "problem", ONE, SLOW),
        (change("nodes", 0, goes=True), "note", ONE, "it is about to go; jobs leave it"),
        (change("nodes", 1, "answer", tokens=False), "warning", ABOUT, NO_TOKEN),
        (change("storage", apart=["22222222"]), "warning", ABOUT, APART),
        (
            change("storage", error=READ_ONLY),
            "problem",
            ABOUT,
            f"jobs cannot have their folders in {STORAGE}: {READ_ONLY}",
        ),
        (change(jobs=["digits"]), "note", ABOUT, "jobs of evenpace run there: digits"),
        (change(missing=True), "problem", ABOUT, "Ray is not installed here"),
    ],
)
def test_what_is_not_well_is_found(change, level, subject, found):
    """Each by a finding that is not there otherwise."""
    assert (level, subject, found) in judged(change)
    assert (level, subject, found) not in judged(lambda seen: None)
