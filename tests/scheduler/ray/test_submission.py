"""A job for a Ray cluster, as it is submitted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.errors import InvalidRequestError
from scheduler.ray.cluster_settings import Device
from scheduler.ray.submission import Scale, Submission


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_a_scale_is_read_as_it_is_written(least, more):
    """What a scale is written as, reads as the same scale."""
    scale = Scale(least, least + more)
    assert Scale.parse(str(scale)) == scale


@given(st.text(alphabet="0123456789:- x", max_size=7))
def test_a_text_is_a_scale_or_an_error(text):
    """Any text is a scale of at least one worker in the right order, or refused as a wrong value."""
    try:
        scale = Scale.parse(text)
    except ValueError:
        return
    assert 1 <= scale.least <= scale.most


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a job"}, "job 'a job': must be 1 to 63 letters"),
        ({"name": ""}, "job '': must be 1 to 63 letters"),
        ({"name": "../else"}, "job '../else': must be 1 to 63 letters"),
        ({"name": "a/w0"}, "job 'a/w0': must be 1 to 63 letters"),
        ({"name": "x" * 64}, f"job '{'x' * 64}': must be 1 to 63 letters"),
        ({"name": "job\n"}, r"job 'job\n': must be 1 to 63 letters"),
        ({"shards": -1}, "shards -1: must be at least 0"),
        ({"cpus_per_worker": -0.5}, "cpus_per_worker -0.5: must be at least 0"),
        (
            {"resources_per_worker": {"place": -1}},
            "resource place of each worker: -1: must be a number from 0 on",
        ),
        (
            {"resources_per_service": {"steady": float("nan")}},
            "resource steady of each service: nan: must be a number from 0 on",
        ),
        ({"gpus_per_worker": float("nan")}, "gpus_per_worker nan: must be at least 0"),
        ({"start_timeout": float("inf")}, "start_timeout inf: must be above 0 and below inf"),
        ({"fixed_group": True}, "a fixed group: only with all-reduce"),
        (
            {"shards": 0, "fixed_group": True, "workers": Scale(2, 4)},
            "workers 2:4: must be one number where their group is fixed",
        ),
    ],
)
def test_a_wrong_value_of_a_job_is_named(values, message):
    """The error names the field, its value and what is allowed."""
    with pytest.raises(ValueError) as error:  # noqa: PT011
        Submission(**values)
    assert message in str(error.value)


@given(st.integers(1, 50), st.floats(0, 64))
def test_a_cluster_of_the_jobs_own_has_cpus_for_all_workers(workers, cpus):
    """The whole CPUs of a job hold all its workers, and there is always one."""
    job = Submission(workers=Scale(1, workers), cpus_per_worker=cpus)
    assert max(1, workers * cpus) <= job.cpus < max(1, workers * cpus) + 1


@pytest.mark.parametrize(
    ("of", "resources"), [("worker", {"neuron_cores": 1.5}), ("service", {"disk": 0.00001})]
)
def test_an_amount_that_ray_refuses_is_an_error_before_anything_starts(of, resources):
    """The message has Ray's reason; else the process would wait for its place for good."""
    cluster = pytest.importorskip("scheduler.ray.cluster", reason="Ray is not installed")
    name, amount = next(iter(resources.items()))
    submission = Submission(Path("train.py"), name="odd", **{f"resources_per_{of}": resources})
    with pytest.raises(InvalidRequestError, match=f"resources of each {of}: .*({name}|{amount})"):
        cluster.check_resources(submission)


@pytest.mark.parametrize(
    ("device", "cpus", "gpus", "further"),
    [
        ("CPU=4", 4.0, 0.0, {"disk": 1.0}),
        ("GPU", 0.0, 1.0, {"disk": 1.0}),
        ("tpu", 0.0, 0.0, {"disk": 1.0, "tpu": 1.0}),
    ],
)
def test_each_worker_of_a_shared_cluster_takes_one_device(device, cpus, gpus, further):
    """And what else the job asks for."""
    job = Device.parse(device).taken_by(Submission(resources_per_worker={"disk": 1.0}))
    assert (job.cpus_per_worker, job.gpus_per_worker, job.resources_per_worker) == (cpus, gpus, further)
