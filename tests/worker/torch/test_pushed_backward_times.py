"""The times of backward passes whose gradients are pushed meanwhile, over links of two bandwidths."""

import contextlib
import math

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from batchsize_manager.config import ManagerConfig
from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerService
from idl.records import WorkerRecord
from lab.bench.overlap_worker import Layer
from lab.proxy import Proxy
from tests.services import in_threads, serving, shard_service
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader
from worker.torch.micro_batches import micro_batches
from worker.torch.optimizer import distribute

NAMES = ("slow", "fast")
LAYERS, WIDTH = 6, 720
BATCH, SHARDS = 4, 2
RATES = {"slow": 12e6, "fast": math.inf}  # bytes per second of a connection to a shard
QUEUE = 65_536  # bytes
SECONDS = 0.01  # of a layer's forward pass; its backward pass takes twice as long
ITERATIONS, TRIALS = 9, 3  # in the first ones it is seen whether the script changes gradients
LATE = 0.02  # by which a thread may be late
FIRST = WorkerRecord._fields.index("backward_time")  # of the four, the last fields


def make_model():
    """Make layers that compute for a time that is given, in float32."""
    return nn.Sequential(*(Layer([SECONDS]) for _ in range(LAYERS)))


def train(session, change=None, **options):
    """Go through an epoch."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    micro_batch = options.pop("micro_batch", None)
    # By a generator of its own, since the workers are threads.
    samples = torch.randn(BATCH * ITERATIONS, WIDTH, generator=torch.Generator().manual_seed(1))
    loader = DataLoader(samples, BATCH, session=session, micro_batch=micro_batch)
    distribute(optimizer, loader, model, **options)
    for batch in loader:
        optimizer.zero_grad()
        for inputs in [batch] if micro_batch is None else micro_batches(batch):
            model(inputs).square().mean().backward()
        if change is not None:
            change(model)
        optimizer.step()


def records(names=NAMES, change=None, policy="learned", **options):
    """Train with these workers, and return the records of all iterations."""
    with contextlib.ExitStack() as stack:
        config = ManagerConfig(policy=policy, job=JobConfig(workers=len(names)))
        manager = stack.enter_context(serving(ManagerService(config)))
        shards = [stack.enter_context(serving(shard_service())) for _ in range(SHARDS)]
        sessions = []
        for name in names:
            proxy = stack.enter_context(Proxy(RATES[name], QUEUE))
            links = [proxy.add(f"{name}>ps-{n}", shard) for n, shard in enumerate(shards)]
            config = SessionConfig(manager, links, worker=name, barrier_timeout=60)
            sessions.append(stack.enter_context(contextlib.closing(Session(config))))
        in_threads(*(lambda s=session: train(s, change, **options) for session in sessions))
        with ManagerClient(manager) as client:
            return client.history("default", 0)[1]


def median(found, name, field):
    """Return the median of a worker's times."""
    return np.median([getattr(record.parts[name], field) for record in found])


@pytest.mark.ci
def test_a_slow_link_is_busy_while_the_backward_pass_computes():
    """What the pass does not hide of the four times is communication time; a fast link takes less of all."""
    found = records()
    assert len(found) == ITERATIONS
    for record in found[:TRIALS]:
        assert all(np.isnan(part[FIRST:]).all() for part in record.parts.values()), "pushed by the step"
    found = found[TRIALS:]
    for part in (part for record in found for part in record.parts.values()):
        assert 0 < part.first_bucket_time < part.backward_time < part.batch_processing_time
        assert part.other_buckets_time > 0
    for name in NAMES:
        parts = [record.parts[name] for record in found]
        room = np.median([part.backward_time - part.first_bucket_time for part in parts])
        hidden = np.median(
            [part.other_buckets_time + part.last_bucket_time - part.communication_time for part in parts]
        )
        assert -LATE < hidden < room + LATE
        assert name == "fast" or hidden > 0.8 * room, "it always has some to send"
    for field in ("other_buckets_time", "last_bucket_time"):
        assert median(found, "slow", field) > 1.5 * median(found, "fast", field)  # load lengthens both
    # The last bucket is one layer's of all, and its parameters are what is left to be pulled after that.
    others, last = (median(found, "slow", name) for name in ("other_buckets_time", "last_bucket_time"))
    assert 1 / (LAYERS - 1) < last / others < 1
    computing = {
        name: median(found, name, "batch_processing_time") - median(found, name, "communication_time")
        for name in NAMES
    }
    assert computing["slow"] < 1.5 * computing["fast"]


@pytest.mark.ci
def test_in_micro_batches_the_times_are_those_of_the_last_pass():
    """What comes before it grows with their number, which is that of the samples; the policy goes by them."""
    found = records(policy="overlap", micro_batch=1)
    assert len(found) == ITERATIONS
    passes = LAYERS * SECONDS
    for part in (part for record in found[TRIALS:] for part in record.parts.values()):
        computing = part.batch_processing_time - part.communication_time
        assert part.backward_time > 2 * passes * (1 - 1 / LAYERS)
        assert computing - part.backward_time > (part.batch_size - 1) * 3 * passes + passes - LATE
        assert 0 < part.first_bucket_time < part.backward_time
        assert part.other_buckets_time > 0
        assert part.last_bucket_time > 0


def clip(model):
    """Clip the gradients, after which they differ from what was computed."""
    nn.utils.clip_grad_norm_(model.parameters(), 1e-9)


@pytest.mark.ci
@pytest.mark.parametrize(("change", "options"), [(clip, {}), (None, {"bucket_cap_mb": None})])
def test_gradients_that_are_pushed_by_the_step_have_no_such_times(change, options):
    """Where a script clips them, or there are no buckets; the communication time is known all the same."""
    found = records(("fast",), change, **options)
    parts = [record.parts["fast"] for record in found]
    assert all(np.isnan(part[FIRST:]).all() for part in parts)
    assert all(part.communication_time > 0 for part in parts)
