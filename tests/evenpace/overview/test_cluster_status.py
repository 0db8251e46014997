"""What is said of a shared cluster: of who waits, and of who has what."""

import pytest

from evenpace.overview.cluster_status import in_use, job_rows, queue, waits_for


@pytest.mark.parametrize(
    ("job", "nodes", "words"),
    [
        ({"place": None}, [{"devices": 4}], ""),
        ({"place": 2}, [], "waits for a node with GPU"),
        (
            {"place": 2},
            [{"devices": 4}, {"devices": 2}],
            "number 2 of 2 that wait; of 6 devices a has 3, b has 1",
        ),
    ],
)
def test_what_a_job_waits_for(job, nodes, words):
    """A node, or devices that others have."""
    others = [("a", None, 3), ("b", None, 1), ("c", 1, 0), ("d", 2, 0)]
    jobs = [{"job": name, "place": place, "workers": dict.fromkeys(range(n))} for name, place, n in others]
    assert waits_for(job, {"nodes": nodes, "device": "GPU", "jobs": jobs}) == words


def test_jobs_that_have_ended_long_ago_are_left_out():
    """The last ones are shown by how they ended, the others as they are."""
    job = {
        "since": 0.0,
        "ended": None,
        "submitted": 0.0,
        "weight": 1.0,
        "most": 2,
        "target": 0,
        "workers": {},
    }
    job |= {"place": None, "why": "", "owner": None}
    over = [
        job | {"job": name, "state": "ended", "how": how} for name, how in (("a", "done"), ("b", "failed"))
    ]
    runs = job | {"job": "c", "state": "running", "how": None, "workers": {"w0": ["n" * 9, "running"]}}
    now = {"now": 600.0, "nodes": [{"node": "n" * 9, "host": "10.0.0.1"}], "jobs": [*over, runs]}
    assert [(row.job, row.state, row.devices, row.where, row.lasts) for row in job_rows(now, 1)] == [
        ("b", "failed", "0", "", "10 min"),
        ("c", "running", "1 → 0", "1 on 10.0.0.1", "10 min"),
    ]
    assert len(job_rows(now, 0)) == 1
    assert len(job_rows(now, None)) == 3


def test_the_queue_and_the_use_of_devices():
    """The queue goes by places; without devices, no share is known."""
    jobs = [{"job": "b", "place": 2}, {"job": "runs", "place": None}, {"job": "a", "place": 1}]
    assert queue({"jobs": jobs}) == ["a", "b"]
    used = {"now": None, "all": 0.256}
    assert in_use({"utilisation": used, "now": 90.0, "begun": 30.0}) == (
        "– now, 26% since the record began 1 min ago"
    )
