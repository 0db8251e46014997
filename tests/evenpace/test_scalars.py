"""Scalars of a worker's iterations, written to TensorBoard and to loggers like W&B's."""

import contextlib
import logging
import sys
import threading
from types import MappingProxyType, ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evenpace
from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import Assignment
from rpc.field_log import FieldLog
from tests.scripts.train_least_squares import FEATURES, INPUTS, RATE, SPEC, TARGETS
from tests.services import manager_service, send_back, serving, shard_service
from worker.iteration_times import IterationTimes, Recorder
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader

NOISE = "evenpace/noise_scale"
BY_NOISE = {NOISE, "evenpace/efficiency", "evenpace/goodput"}  # where the noise scale is known
MEASURED = ("batch_size", "batch_processing_time", "iteration_time", "waiting_share", "speed", "throughput")
NAMES = {f"evenpace/{name}" for name in MEASURED}


class Heard:
    """A writer that keeps its values."""

    def __init__(self):
        self.steps = []
        self.closed = 0

    def scalars(self, step, values):
        """Keep the values."""
        self.steps.append((step, dict(values)))

    def close(self):
        """Count the call."""
        self.closed += 1


class Broken:
    """A writer that raises an error at a step."""

    def __init__(self, at):
        self.at, self.calls = at, 0

    def scalars(self, step, values):
        """Raise an error at the step."""
        self.calls += 1
        if step == self.at:
            raise RuntimeError("the disk of the charts is full")


def assigned(iteration, count=6, attempt=0, total=10):
    """Return an assignment of an iteration's slice."""
    return Assignment(iteration, 0, 0, count, total, attempt)


# -- the recorder


class Clock:
    """A clock that a test moves on."""

    now = 100.0

    def __call__(self):
        """Return the time in seconds."""
        return self.now


def test_values_of_an_iteration():
    """An iteration of 2 s has 0.5 s of waiting and 1.2 s of computing, on 6 of 10 samples.

    With the noise scale 90, once it is known, a sample of a batch of 10 does 0.95 of one of a batch of 5.
    """
    clock, heard = Clock(), Heard()
    recorder = Recorder(clock=clock)
    recorder.add_writer(heard, 1)
    recorder.begin()
    for iteration, noise in enumerate(((), (90.0, 5))):
        clock.now += 2.0
        recorder.measure_part(assigned(iteration), 1.2)
        recorder.add_waiting(0.5)
        recorder.finish_part(assigned(iteration + 1), *noise)
    first = {
        "evenpace/batch_size": 6.0,
        "evenpace/batch_processing_time": 1.2,
        "evenpace/iteration_time": 2.0,
        "evenpace/waiting_share": 0.5 / 1.7,
        "evenpace/speed": 5.0,
        "evenpace/throughput": 5.0,
    }
    second = first | {NOISE: 90.0, "evenpace/efficiency": 0.95, "evenpace/goodput": 4.75}
    assert heard.steps == [(0, pytest.approx(first)), (1, pytest.approx(second))]


def test_parts_of_one_iteration_are_summed_up():
    """A worker that also does a lost worker's part writes the iteration once, with both parts."""
    heard = Heard()
    recorder = Recorder()
    recorder.add_writer(heard, 1)
    recorder.begin()
    recorder.measure_part(assigned(3, 6), 1.0)
    recorder.finish_part(assigned(3, 2))
    assert not heard.steps
    recorder.measure_part(assigned(3, 2), 0.5)
    recorder.finish_part(None)
    ((step, values),) = heard.steps
    assert (step, values["evenpace/batch_size"], values["evenpace/batch_processing_time"]) == (3, 8.0, 1.5)


def test_times_that_are_known_late():
    """A GPU's times come with the report, maybe in another thread: nothing waits, and none is lost."""
    heard = Heard()
    recorder = Recorder()
    recorder.add_writer(heard, 1)
    recorder.begin()
    asked = []
    for i in range(4):
        asked.append(recorder.measure_part(assigned(i), lambda i=i: float(i)))
        recorder.finish_part(assigned(i + 1))
    assert not heard.steps
    thread = threading.Thread(target=lambda: [ask() for ask in asked[:2]])
    thread.start()
    thread.join()
    recorder.measure_part(assigned(4), 4.0)
    recorder.finish_part(assigned(5))
    assert [step for step, _ in heard.steps] == [0, 1, 4]
    assert (asked[2](), asked[3]()) == (2.0, 3.0)
    recorder.close()
    assert [(step, values["evenpace/batch_processing_time"]) for step, values in heard.steps] == [
        (i, float(i)) for i in (0, 1, 4, 2, 3)
    ]
    assert heard.closed == 1


def test_a_writer_that_fails_is_used_no_more(caplog):
    """An error is logged once, with its reason and the worker; other writers go on."""
    heard, broken = Heard(), Broken(at=2)
    recorder = Recorder(FieldLog("scalars", lambda: {"job": "j", "worker": "w"}))
    recorder.add_writer(broken, 1)
    recorder.add_writer(heard, 1)
    recorder.begin()
    for i in range(6):
        recorder.measure_part(assigned(i), 1.0)
        recorder.finish_part(assigned(i + 1))
    assert broken.calls == 3
    assert [step for step, _ in heard.steps] == list(range(6))
    (record,) = caplog.records
    assert (record.levelno, record.job, record.worker) == (logging.ERROR, "j", "w")
    assert "the disk of the charts is full" in caplog.text


@given(
    iteration=st.integers(0, 2**40),
    total=st.integers(1, 2**40),
    share=st.floats(0, 1),
    seconds=st.floats(0, 1e9),
    waiting=st.floats(0, 1e9),
    duration=st.floats(0, 1e9),
)
def test_values_are_finite_and_shares_are_shares(iteration, total, share, seconds, waiting, duration):
    """Values are finite, and shares lie between 0 and 1, whatever was measured."""
    count = int(total * share)
    part = Assignment(iteration, 0, 0, count, total)
    values = IterationTimes(part, count, seconds, 0, waiting, duration).values()
    assert set(values) <= NAMES
    assert all(np.isfinite(value) for value in values.values())
    assert 0 <= values.get("evenpace/waiting_share", 0.0) <= 1
    assert count or "evenpace/speed" not in values


@pytest.mark.parametrize("every", [0, -1, 1.5, True, None])
def test_every_is_a_whole_number(every):
    """`every` is refused unless it is a whole number from 1."""
    with pytest.raises(InvalidRequestError, match=f"every {every!r}: must be a whole number from 1"):
        Recorder().add_writer(Heard(), every)


# -- a session


def train(session, manager, *, send_back_at=None):
    """Train two epochs of least squares."""
    dataset = torch.utils.data.TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(TARGETS))
    loader = DataLoader(dataset, SPEC.total_batch_size, session=session)
    session.exchange.prepare(Layout("float64", "sgd", (Group(FEATURES, {"lr": RATE}),)), np.zeros(FEATURES))
    session.start_training()
    for _ in range(2):
        for inputs, targets in loader:
            error = inputs.numpy() @ session.exchange.parameters - targets.numpy()
            session.exchange.gradient.values[:] = error @ inputs.numpy() / len(targets)
            done = session.assignment
            if done.iteration == send_back_at and done.attempt == 0:
                send_back(session, manager, 10)
            session.finish_iteration()


def test_repeated_iterations_are_written_again(tmp_path):
    """A rewind drops the iteration under way, and steps go back."""
    heard, seldom = Heard(), Heard()
    shard = shard_service(state=tmp_path, checkpoint_every=10)
    with serving(manager_service()) as manager, serving(shard) as address:
        with contextlib.closing(Session(SessionConfig(manager, (address,), worker="w"))) as session:
            evenpace.scalars.write(heard, session=session)
            evenpace.scalars.write(seldom, every=7, session=session)
            train(session, manager, send_back_at=13)
            count = 2 * SPEC.iterations_per_epoch
        steps = [step for step, _ in heard.steps]
        assert steps == [*range(13), *range(10, count)]
    assert [step for step, _ in seldom.steps] == [step for step in steps if step % 7 == 0]
    assert all(values["evenpace/batch_size"] > 0 for _, values in heard.steps)
    assert heard.closed == seldom.closed == 1


def test_loggers_like_weights_and_biases():
    """An object with log(values, step=) is given plain dictionaries; one without is refused."""

    class Run:
        def log(self, data, step=None, commit=None):
            self.logged = (step, type(data), data)

    run = Run()
    evenpace.scalars.Logger(run).scalars(7, MappingProxyType({NOISE: 90.0}))
    assert run.logged == (7, dict, {NOISE: 90.0})
    with pytest.raises(TypeError, match=r"has no method log\(values, step=\)"):
        evenpace.scalars.Logger(object())


@given(worker=st.text(max_size=30))
def test_folders_stay_within_the_given_one(worker):
    """A worker's folder is one part of a path, and never a way up, whatever the worker's name."""
    name = evenpace.scalars._folder_name(worker)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert "\0" not in name


def read_events(folder):
    """Return the scalars that TensorBoard reads from a folder, by tag, then by step."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {
        tag: {event.step: event.value for event in events.Scalars(tag)} for tag in events.Tags()["scalars"]
    }


@pytest.mark.ci
def test_tensorboard_shows_what_the_manager_recorded(tmp_path, monkeypatch):
    """A session writes event files; their values are the manager's, as TensorBoard reads them."""
    # TensorBoard reads files by itself; TensorFlow, which it would rather use, takes long to import.
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", ModuleType("notf"))
    with serving(manager_service()) as manager, serving(shard_service()) as address:
        with contextlib.closing(Session(SessionConfig(manager, (address,), worker="w"))) as session:
            evenpace.scalars.write(evenpace.scalars.TensorBoard(tmp_path, "w"), session=session)
            train(session, manager)
        with ManagerClient(manager) as client:
            _, recorded = client.history(client.jobs().jobs[0].job, 0)
    written = read_events(tmp_path / "w")
    assert NAMES <= set(written) <= NAMES | BY_NOISE
    assert len(recorded) == 2 * SPEC.iterations_per_epoch
    for tag in NAMES:
        assert list(written[tag]) == [record.iteration for record in recorded]
    for record in recorded:
        (part,) = record.parts.values()
        values = {name: written[f"evenpace/{name}"][record.iteration] for name in MEASURED}
        seconds = part.batch_processing_time
        assert values["batch_size"] == part.batch_size
        assert values["batch_processing_time"] == pytest.approx(seconds, rel=1e-6)  # it keeps float32
        assert values["speed"] == pytest.approx(part.batch_size / seconds, rel=1e-6)
        assert values["throughput"] * values["iteration_time"] == pytest.approx(record.total, rel=1e-5)
        assert values["iteration_time"] >= seconds * (1 - 1e-6)
        assert 0 <= values["waiting_share"] <= 1
