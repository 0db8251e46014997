"""The times of a backward pass and its reductions: from real ranks to the manager's records, and by hand."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from tests.scripts import train_in_buckets as script
from tests.services import manager_process
from tests.worker.processes import processes
from worker.buckets import Bucket, backward_times
from worker.meter import BackwardTimes
from worker.torch.backward_watch import BackwardWatch

NAMES = (script.LATE, "early")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("arguments", "policy"), [(("--pieces",), "overlap"), (("--micro-batch", "2"), "even")]
)
def test_ranks_measure_their_backward_passes_and_reductions(tmp_path, wait_until, arguments, policy):
    """Parts are no longer than the whole, and only the rank that is ready last sees reductions alone."""
    with (
        manager_process("--workers", "2", "--policy", policy) as manager,
        processes(tmp_path, manager, (), NAMES, script=Path(script.__file__), arguments=arguments) as workers,
    ):
        for name, worker in workers.items():
            wait_until(lambda worker=worker: worker.poll() is not None, f"the end of {name}")
            assert worker.returncode == 0, (tmp_path / f"{name}.log").read_text()[-3000:]
        with ManagerClient(manager) as client:
            records = client.history("default", 0)[1]
    assert len(records) == script.SAMPLES // script.BATCH
    waited = []
    assert all(np.isnan(part.backward_time) for part in records[0].parts.values()), "a single bucket"
    for record in records[1:]:
        parts = record.parts
        for part in parts.values():
            assert 0 < part.first_bucket_time < part.backward_time < part.batch_processing_time
            assert part.other_buckets_time > 0
            assert part.last_bucket_time >= 0, "gloo may sum it before another"
        late, early = (parts[name].other_buckets_time + parts[name].last_bucket_time for name in NAMES)
        assert parts[script.LATE].batch_processing_time - parts[script.LATE].backward_time >= script.SECONDS
        assert late + parts[script.LATE].backward_time < record.duration
        waited.append(early - late)
    assert np.median(waited) > script.SECONDS / 2


def reduce_two(watch):
    """Reduce two buckets, one after the other."""
    for is_last in (False, True):
        watch.ready(is_last=is_last).note_done()


def test_time_in_which_a_bucket_waits_for_another_counts_once():
    """The second of three buckets is ready before the first is summed, the last one after the second is."""
    buckets = [Bucket(False, 12.0, 15.0), Bucket(False, 13.0, 16.0), Bucket(True, 18.0, 20.5)]
    assert backward_times(10.0, buckets) == BackwardTimes(8.0, 2.0, 4.0, 2.5)
    assert backward_times(10.0, [buckets[0], Bucket(True, 13.0, 16.0)]) == BackwardTimes(3.0, 2.0, 3.0, 1.0)


def test_a_pass_that_was_not_seen_as_a_whole_has_no_times():
    """Without its begin, its last bucket or the end of a reduction, nothing is known."""
    whole = [Bucket(False, 2.0, 3.0), Bucket(True, 4.0, 5.0)]
    assert backward_times(1.0, whole).backward_time == 3.0
    for begun, buckets in (
        (None, whole),
        (1.0, []),
        (1.0, whole[:1]),
        (1.0, whole[1:]),
        (1.0, [Bucket(False, 2.0), whole[1]]),
        (1.0, [whole[0], Bucket(True, 4.0)]),
    ):
        assert backward_times(begun, buckets) == BackwardTimes()


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, 1), lambda x: {"a": [x], "b": None}])
def test_a_pass_begins_with_the_gradient_of_any_output(form):
    """It is not begun by the forward pass, nor by one of an evaluation; and is forgotten once it is taken."""

    class Module(nn.Linear):
        def forward(self, inputs):
            return form(super().forward(inputs))

    model = Module(2, 1)
    watch = BackwardWatch(model)
    output = model(torch.ones(1, 2))
    reduce_two(watch)
    assert watch.take() == BackwardTimes()

    output = model(torch.ones(1, 2))
    find = {torch.Tensor: lambda x: x, tuple: lambda x: x[0], dict: lambda x: x["a"][0]}[type(output)]
    find(output).sum().backward()
    reduce_two(watch)
    with torch.no_grad():
        model(torch.ones(1, 2))
    times = watch.take()
    assert 0 < times.first_bucket_time < times.backward_time
    assert watch.take() == BackwardTimes()


def test_a_model_that_is_saved_as_a_whole_has_no_watch():
    """Its copies call nothing of ours, and can be loaded where there is none of it."""
    model = nn.Linear(2, 1)
    watch = BackwardWatch(model)
    saved = pickle.dumps(model)
    assert b"worker" not in saved
    pickle.loads(saved)(torch.ones(1, 2)).sum().backward()
    reduce_two(watch)
    assert watch.take() == BackwardTimes(), "its pass was not seen"
