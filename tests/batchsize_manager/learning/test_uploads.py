"""Uploads of a job's models to a manager: of any reasonable size, and bounded in memory."""

import threading
import uuid
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.learning.saved_models import unpack_models
from batchsize_manager.learning.uploads import LEARNED_BYTES, Uploads
from batchsize_manager.policies import PolicyOptions
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, UnavailableError
from idl.plan import JobSpec, Resume
from predictors import DeviceKind
from predictors.architectures import ARCHITECTURES, CENTER, SPREAD
from rpc.client import Client
from rpc.limits import ServerLimits
from tests.services import MemberWorker, Raw, in_threads, join_request, manager_service, serving
from tests.wire import answer, framed
from worker.membership import Membership

_wire = idl.batchsize_manager

MANY = 2000
SPEC = JobSpec(MemberWorker.DATASET * MANY, MANY, 1, shuffle=False)


def models_of(predictor, workers):
    """Return a fitted network and a moving average for each worker."""
    random = np.random.default_rng(0)
    shapes = {**ARCHITECTURES[predictor].shapes, CENTER: (3,), SPREAD: (3,)}
    networks = {
        worker: {name: random.uniform(0.5, 1, shape) for name, shape in shapes.items()} for worker in workers
    }
    return {
        predictor: networks,
        "ema": {worker: {"speed": np.array(random.uniform(1, 100))} for worker in workers},
    }


def identity(worker):
    """Return the identity of a worker of the job."""
    return idl.common.Identity("j", worker, uuid.uuid4().hex)


def request(worker, iteration=0, learned_bytes=None):
    """Return the join request of a worker that resumes the job from an iteration."""
    asked = join_request(identity(worker), dataset_size=SPEC.dataset_size, total_batch_size=MANY)
    asked.resume = _wire.Resume(iteration=iteration, learned_bytes=learned_bytes)
    asked.device = "GPU"
    return asked


@pytest.mark.ci
def test_a_job_of_2000_workers_goes_on_from_its_checkpoint(wait_until):
    """All models, here the largest, are uploaded; a worker that joins a running job need not send them."""
    predictor = "lstm"
    names = [f"host-{number}-{10_000 + number}" for number in range(MANY)]
    known, learned, iteration = models_of(predictor, names), b"", 0
    for models in (known, {}):
        config = JobConfig(workers=MANY)
        service = ManagerService(ManagerConfig(options=PolicyOptions(predictor, models=models), job=config))
        limits = ServerLimits(calls_in_flight=MANY)
        with serving(service, limits) as address, Raw(address) as raw:
            client = Client(_wire.BatchSizeManager, address, "manager", call_timeout=120)
            membership = Membership(client, identity(names[0]), 120, lambda lost: None, lambda error: None)

            def others(service=service, raw=raw, iteration=iteration):
                wait_until(lambda: service.jobs, "the job")
                raw.send(b"".join(framed("join", request(name, iteration, 10**9)) for name in names[1:]))
                assert {answer(raw)[1].assignment.iteration for _ in names[1:]} == {iteration}

            resume = Resume(iteration)
            in_threads(partial(membership.join, SPEC, Bounds(), resume, learned, device="GPU"), others)
            learned, _ = membership.checkpoint()
            membership.close()
        assert 2**20 < len(learned) < LEARNED_BYTES / 2
        after = unpack_models(learned)
        assert after.keys() == known.keys()
        for name, workers in after.items():
            assert workers.keys() == {*names, DeviceKind(""), DeviceKind("GPU")}
            for worker, weights in known[name].items():
                for array, values in weights.items():
                    assert np.allclose(workers[worker][array], values, rtol=1e-12)
        iteration = 7


def test_a_checkpoint_that_would_be_refused_has_the_kinds_alone(monkeypatch, caplog):
    """A checkpoint that is too large has the kinds' models alone, says so in the log, and can be resumed."""
    options = PolicyOptions("narx", models=models_of("narx", ["a", "b", "w"]))
    service = ManagerService(ManagerConfig(options=options, job=JobConfig(workers=1)))
    with serving(service) as address:
        client = Client(_wire.BatchSizeManager, address, "manager", call_timeout=120)
        membership = Membership(client, identity("w"), 120, lambda lost: None, lambda error: None)
        membership.join(SPEC, Bounds(), None, device="GPU")
        whole, _ = membership.checkpoint()
        monkeypatch.setattr("batchsize_manager.service.LEARNED_BYTES", len(whole) - 1)
        learned, _ = membership.checkpoint()
        membership.leave()
        membership.close()
    assert all("w" in workers for workers in unpack_models(whole).values())
    kinds = {DeviceKind(""), DeviceKind("GPU")}
    assert {name: workers.keys() for name, workers in unpack_models(learned).items()} == {
        "narx": kinds,
        "ema": kinds,
    }
    assert f"{len(whole)} bytes of job j have learned is too much" in caplog.text


def test_more_than_a_job_can_learn_is_refused():
    """The error says how much was sent and what is allowed, and the worker may join without it."""
    with serving(service := manager_service()) as address, Raw(address) as raw:
        client = Client(_wire.BatchSizeManager, address, "manager", call_timeout=120)
        membership = Membership(client, identity("w"), 120, lambda lost: None, lambda error: None)
        said = f"learned: {LEARNED_BYTES + 1} bytes; at most {LEARNED_BYTES} are allowed"
        with pytest.raises(InvalidRequestError, match=said):
            membership.join(SPEC, Bounds(), Resume(), bytes(LEARNED_BYTES + 1))
        assert not service.jobs
        membership.join(SPEC, Bounds(), Resume())
        assert membership.next().iteration == 0
        membership.leave()
        membership.close()
        raw.send(framed("resume", request("v"), bytes(8)))  # without `join` before it, as a stock client may
        with pytest.raises(InvalidRequestError, match="learned: models that were sent"):
            answer(raw)


def test_announced_bytes_take_no_memory(wait_until):
    """Peers that announce the most bytes and send one get a piece of memory each, and no more."""
    service = manager_service()
    with serving(service) as address:
        raws = [Raw(address) for _ in range(20)]
        begun = framed("resume", request("w"), bytes(LEARNED_BYTES))[:8000]
        for raw in raws:
            raw.send(begun)
        wait_until(lambda: len(service._uploads) == 20, "the uploads")
        assert service._uploads.held <= 20 * 2**18
        worker = MemberWorker(address)
        worker.iterate()
        worker.close()
        for raw in raws:
            raw.socket.close()
        wait_until(lambda: not service._uploads.held, "that they are forgotten")


class Slow(ManagerService):
    """A service that notes when an upload has begun to arrive."""

    def __init__(self, config):
        super().__init__(config)
        self.begun = threading.Event()

    def open_sink(self, call, length):
        """Open a sink as `ManagerService` does, and note it."""
        sink = super().open_sink(call, length)
        self.begun.set()
        return sink


def test_a_dropped_upload_is_asked_for_again_when_the_job_has_ended(wait_until):
    """A job that ends during an upload that it did not need is not made again without the upload."""
    service = Slow(ManagerConfig())
    with serving(service) as address, Raw(address) as raw:
        worker = MemberWorker(address, "j")
        sent = framed("resume", request("w"), bytes(100_000))
        raw.send(sent[:50_000])
        assert service.begun.wait(120)
        worker.close()
        raw.send(sent[50_000:])
        with pytest.raises(UnavailableError, match="the job has ended since; try again"):
            answer(raw)
        assert not service.jobs


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(st.data())
def test_uploads_never_take_more_than_they_may(data):
    """Uploads in any order are whole in the end, or refused; finished ones leave room for others."""
    most = 2**19
    uploads = Uploads(most)
    lengths = data.draw(st.lists(st.sampled_from([0, 1, 2**12, 2**18, 2**19]), min_size=1, max_size=12))
    sent = [np.random.default_rng(n).bytes(length) for n, length in enumerate(lengths)]
    opened = {n: uploads.open(length) for n, length in enumerate(lengths)}
    positions = dict.fromkeys(opened, 0)
    refused = set()
    while opened:
        n = data.draw(st.sampled_from(sorted(opened)))
        if positions[n] == lengths[n]:
            try:
                assert opened.pop(n).take() == sent[n]
            except UnavailableError:
                refused.add(n)
        elif data.draw(st.integers(0, 20)) == 0:
            opened.pop(n).abort()
        else:
            buffer = opened[n].get_buffer()
            assert 0 < len(buffer) <= lengths[n] - positions[n]
            count = data.draw(st.integers(1, len(buffer)))
            buffer[:count] = sent[n][positions[n] : positions[n] + count]
            opened[n].advance(count)
            positions[n] += count
        assert uploads.held <= most + len(opened) * 2**12
    assert uploads.held == 0
    if sum(-(-length // 2**18) * 2**18 for length in lengths) <= most:
        assert not refused
    assert uploads.has_room(most)
