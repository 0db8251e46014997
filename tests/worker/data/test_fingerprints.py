"""Workers that join compare a few samples of their data sets."""

import os
import random

import numpy as np
import pytest
import torch

from idl.errors import InvalidRequestError
from idl.plan import JobSpec
from idl.translation import read_spec, wire_spec
from tests.services import OpenServices
from worker.data.fingerprints import fingerprints
from worker.data.source import Source, load
from worker.torch.loader import DataLoader

SIZE = 240


class Made:
    """A data set whose samples a function makes."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        return self.make(index)


def image(index):
    """Return a sample with a text, an image, and a label."""
    values = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(int(index)))
    return {"name": f"{index}.png", "image": values, "label": (int(index) % 7, None, True)}


def split():
    """Split unseeded, as `random_split` does."""
    samples = torch.utils.data.TensorDataset(torch.rand(300, 6, generator=torch.Generator().manual_seed(0)))
    return torch.utils.data.random_split(samples, [SIZE, 60])[0]


def numbered(names):
    """Number labels in some order, as that of a set is."""
    classes = {name: number for number, name in enumerate(names)}
    return Made(lambda index: (torch.ones(2), classes["ab"[int(index) % 3 // 2]]))


def of(dataset):
    """Return the spec of a data set's job, as it comes over the wire."""
    source = Source(dataset, SIZE, lambda indices: load(dataset, indices), list)
    return read_spec(wire_spec(JobSpec(SIZE, 40, samples=fingerprints(source))))


def flipped(chance):
    """Return a sample that is turned around at random."""
    return Made(lambda index: image(index)["image"].flip(0) if chance() < 0.5 else image(index)["image"])


def of_generator():
    """A data set with a generator of its own, which one more draw disturbs."""
    made = Made(None)
    made.rng = np.random.default_rng()
    made.make = lambda index: made.rng.random(5)
    return made


def rounded(digits):
    """Samples that another device computes with other last digits."""
    return Made(lambda index: [(image(index)["image"] - 0.5).numpy().round(digits), np.float32("nan"), b"x"])


def broken(index):
    """Fail."""
    raise OSError(index)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (split(), split(), False),
        (numbered("ab"), numbered("ba"), False),
        (Made(image), Made(lambda index: image(index + 1)), False),
        (Made(lambda index: [1.0]), Made(lambda index: [1.0, 2.0]), False),
        (Made(lambda index: -1.0), Made(lambda index: 1.0), False),
        (Made(image), Made(image), True),
        (rounded(7), rounded(5), True),
        (flipped(random.random), flipped(random.random), True),
        (flipped(lambda: torch.rand(())), flipped(lambda: torch.rand(())), True),
        (flipped(np.random.random), flipped(np.random.random), True),
        (of_generator(), of_generator(), True),
        (Made(image), Made(broken), True),
        (Made(lambda index: object()), Made(lambda index: object()), True),
    ],
)
def test_data_sets_that_differ_are_seen_and_others_are_not(one, other, same):
    """Random samples, other last digits, and what cannot be compared say nothing."""
    random.seed(1)
    torch.manual_seed(1)
    before = of(one)
    random.seed(2)
    torch.manual_seed(2)
    assert before.has_samples_of(of(other)) == same
    assert of(other).has_samples_of(before) == same
    assert before == of(other), "it is no part of what the job is"


def test_an_unseeded_split_is_refused_when_workers_join():
    """The error says what to do, which may be to turn the comparison off."""
    with OpenServices(1) as services:
        first, second, third = (
            DataLoader(split(), 40, session=services.session(f"w{i}"), compare_samples=i < 2)
            for i in range(3)
        )
        first.session.join()
        with pytest.raises(InvalidRequestError, match=r"'w1' has other samples .* compare_samples=False"):
            second.session.join()
        assert third.session.training.samples() == ()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_nothing_of_a_script_is_disturbed(num_workers):
    """Generators stay as they are; what loading processes open for themselves is not opened here."""
    loaded_by = set()

    def make(index):
        loaded_by.add(os.getpid())
        return random.random() + np.random.random() + torch.rand(()) + index

    def state():
        return repr((random.getstate(), np.random.get_state(), torch.get_rng_state().tolist()))

    with OpenServices(1) as services:
        loader = DataLoader(Made(make), 40, session=services.session("w"), num_workers=num_workers)
        before = state()
        assert loader.session.training.samples() == ((),) * 4  # they are random
        assert state() == before
    assert loaded_by == (set() if num_workers else {os.getpid()})
