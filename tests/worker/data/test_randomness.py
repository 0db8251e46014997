"""Random numbers that follow a micro-batch, and generators that do not."""

import copy
import dataclasses
import logging
import random
from collections import deque
from functools import partial

import keras
import numpy as np
import pytest
import torch

import tests
from idl.plan import JobSpec
from rpc.field_log import FieldLog
from worker.data.micro_batches import MicroBatch
from worker.data.randomness import SeededLoading, are_alike, own_generators, seed_generators
from worker.data.source import Source

OWN = random.Random(1)
PART = MicroBatch(6, np.arange(6, 9), 3, JobSpec(20, 10, 1), 0)


def drawn():
    """Return numbers of the generators of Python and NumPy."""
    return random.random(), np.random.random()


class Holder:
    """A transformation that holds something."""

    def __init__(self, held):
        self.held = held


def seeded(dataset, make, collate=list):
    """The loading of micro-batches of a data set, of which `make` makes each sample."""
    source = Source(dataset, 20, lambda indices: [make() for _ in indices], collate)
    return SeededLoading(source, seed_generators, FieldLog("samples"))


def test_samples_and_the_computation_after_them_follow_the_micro_batch(caplog):
    """Whatever was drawn before, a micro-batch is loaded and computed with the same numbers."""
    loading = seeded(None, drawn)
    first = loading.load(PART), drawn()
    random.random()
    second = loading.load(PART), drawn()
    assert first == second
    assert first[1] not in first[0]
    other = MicroBatch(9, PART.indices, 3, PART.spec, 0)
    assert loading.load(other) != first[0]
    assert "samples differ" not in caplog.text


@dataclasses.dataclass(eq=False)
class Sample:
    """A sample of a type of its own."""

    image: np.ndarray


@pytest.mark.parametrize(
    ("make", "warnings"),
    [
        (lambda: Sample(np.arange(3)), 0),
        (lambda: Sample(np.random.default_rng().random(3)), 1),
        (lambda: deque([np.arange(3)]), 0),  # which Python cannot compare
    ],
)
def test_samples_of_any_type_are_loaded(caplog, make, warnings):
    """Those of a dataclass are compared by their fields; where there is no answer, there is no warning."""
    assert [type(sample) for sample in seeded(None, make).load(PART)] == [type(make())] * 3
    assert sum("samples differ" in record.message for record in caplog.records) == warnings


def test_a_generator_of_the_function_that_makes_batches_is_named(caplog):
    """Where the samples follow their micro-batch, and the batch that is made of them does not."""
    noise = Holder(np.random.default_rng(1))
    loading = seeded(None, drawn, lambda samples: np.array(samples) + noise.held.random())
    with caplog.at_level(logging.WARNING):
        loading.load(PART)
    assert "such as collate_fn.noise.held (Generator)" in caplog.text


def test_a_function_that_makes_batches_may_change_the_samples(caplog):
    """It is tried out on copies, and what is drawn after it follows from the micro-batch as before."""

    def collate(samples):
        return [sample.pop() + random.random() for sample in samples]

    batches = []
    loading = seeded(None, lambda: [1.0], collate)
    for _ in range(2):  # with and without the check
        batches.append((loading.load(PART), drawn()))
    assert batches[0] == batches[1]
    assert "samples differ" not in caplog.text


class OfModule:
    """A data set that uses generators of modules."""

    def __getitem__(self, index):
        return OWN.random() + np.random.random() + random.random() + tests.OWN.random()


def test_generators_are_found_wherever_they_are_held(monkeypatch):
    """Attributes, items, closures, partial functions and bound methods are followed, for all frameworks."""
    monkeypatch.setattr(tests, "OWN", np.random.default_rng(), raising=False)
    assert own_generators("dataset", OfModule()) == ["OWN (Random)", "tests.OWN (Generator)"]
    python, numpy = random.Random(1), np.random.RandomState(1)

    def closed():
        return python.random()

    held = {"a": Holder(torch.Generator()), "b": (partial(closed, python), numpy.normal)}
    held["c"] = Holder(keras.random.SeedGenerator(1))
    assert own_generators("held", held) == [
        "held['a'].held (Generator)",
        "held['c'].held (SeedGenerator)",
        "held['b'][1].__self__ (RandomState)",
        "held['b'][0].func.python (Random)",
    ]
    assert (
        own_generators(
            "held", [random.random, np.random.normal, np.ones(3), torch.ones(3), "text", held["a"].__class__]
        )
        == []
    )


@pytest.mark.parametrize(
    ("sample", "other"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, 2.0])),
        (np.zeros(2), np.zeros(2, np.float32)),
        (np.zeros(2), np.zeros(3)),
        (torch.tensor([0.0, float("nan")]), torch.tensor([-0.0, float("nan")])),
        (np.array(["a", None]), np.array(["b", None])),
        (torch.tensor([1.0, float("nan")], dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (keras.ops.convert_to_tensor([1, 2]), keras.ops.convert_to_tensor([1, 3])),
        (float("nan"), 1.0),
        ({"x": [1, "a"]}, {"x": [1, "b"]}),
        ((1, 2), [1, 2]),
        (Holder(1), Holder(2)),
        (np.array(["a", "b"]), np.array(["a", "c"])),
    ],
)
def test_samples_are_compared_by_their_values(sample, other):
    """Nested samples are alike if all their values are, to the last bit."""
    assert are_alike([sample], [copy.deepcopy(sample)])
    assert not are_alike([sample], [other])
