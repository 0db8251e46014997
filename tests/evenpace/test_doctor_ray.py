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


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (
            lambda seen: seen["nodes"][1]["answer"].update(evenpace=None),
            ("problem", "Ray node 10.0.0.2 (222222)", "evenpace is not installed there"),
        ),
        (
            lambda seen: seen["nodes"][1]["answer"].update(evenpace="0.0.9"),
            (
                "problem",
                "Ray node 10.0.0.2 (222222)",
                f"it has evenpace 0.0.9; this machine has {__version__}",
            ),
        ),
        (
            lambda seen: seen["nodes"][0]["answer"]["frameworks"].update(torch=None),
            ("problem", "Ray node 10.0.0.1 (111111)", "it has none of torch, keras and jax"),
        ),
        (
            lambda seen: seen["nodes"][0]["answer"].update(clock_error=75.0),
            ("warning", "Ray node 10.0.0.1 (111111)", "its clock and this machine's are 75.0 s apart"),
        ),
        (
            lambda seen: seen["nodes"][0].update(answer=None, error="it did not answer within 20 s"),
            ("problem", "Ray node 10.0.0.1 (111111)", "it did not answer within 20 s"),
        ),
        (
            lambda seen: seen["nodes"][0].update(goes=True),
            ("note", "Ray node 10.0.0.1 (111111)", "it is about to go; jobs leave it"),
        ),
        (
            lambda seen: seen["nodes"][1]["answer"].update(tokens=False),
            ("warning", ABOUT, "nodes of it ask for no token: whoever reaches its ports may run code there"),
        ),
        (
            lambda seen: seen["storage"].update(apart=["22222222"]),
            (
                "warning",
                ABOUT,
                "/mnt/results is not on a disk that all nodes share: Ray node 10.0.0.2 (222222) did not see "
                "a file there",
            ),
        ),
        (
            lambda seen: seen["storage"].update(error="OSError: [Errno 30] Read-only file system"),
            (
                "problem",
                ABOUT,
                "jobs cannot have their folders in /mnt/results: OSError: [Errno 30] Read-only file system",
            ),
        ),
        (lambda seen: seen.update(jobs=["digits"]), ("note", ABOUT, "jobs of evenpace run there: digits")),
        (lambda seen: seen.update(missing=True), ("problem", ABOUT, "Ray is not installed here")),
        (lambda seen: seen.update(error="no such luck"), ("problem", ABOUT, "no such luck")),
    ],
)
def test_what_is_not_well_is_found(change, finding):
    """Each by a finding that is not there otherwise."""
    assert finding in judged(change)
    assert finding not in judged(lambda seen: None)
