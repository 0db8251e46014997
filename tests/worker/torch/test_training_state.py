"""States of trainings: their passing on, and comparisons by the sums of their bits."""

import json
import math
import os
import pickle
import subprocess
import sys
from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch
from torch import distributed

from idl.errors import InvalidRequestError
from worker.torch.outlines import filled, outline
from worker.torch.training_state import TrainingState, _bits


class RunsCode:
    """What pickle would make by a call."""

    def __reduce__(self):
        return print, ("this is run",)


class Keeps:
    """An object whose state is given."""

    def __init__(self, state):
        self.state = state

    def state_dict(self):
        """The state."""
        return self.state

    def load_state_dict(self, state):
        """Another one."""
        self.state = state


STATE = {
    0: [1, -2.5, math.inf, None, True, "ä"],
    "tuple": (0.9, {"deep": ({3},)}),
    "random": np.random.RandomState(5).get_state(),
    "number": np.float32(0.1),
    "empty": torch.empty(0, 2),
    "scalar": torch.tensor(3, dtype=torch.uint8),
    "low": torch.ones(3, dtype=torch.bfloat16),
    "milestones": Counter([3, 3, 5]),
    "ordered": OrderedDict(b=1, a=2),
    "bytes": b"\x00\xff",
    ("pair", 2): (torch.float16, torch.device("cpu")),
}


def plain(value):
    """A state as values that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.tolist()
    if isinstance(value, dict):
        return type(value), [(key, plain(one)) for key, one in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [plain(one) for one in value]
    return type(value), value


@pytest.mark.ci
def test_a_state_goes_as_text_and_tensors():
    """All kinds of values come back with their types, and no object of a script's class is taken along."""
    sent, received = [], []
    got = filled(outline(STATE, sent), received)
    for there, here in zip(received, sent, strict=True):
        there.copy_(here)
    assert plain(got) == plain(STATE)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidRequestError, match=r"state\['a'\]\[0\] is of .*RunsCode"):
        TrainingState(model, optimizer, [Keeps({"a": [RunsCode()]})])


@pytest.mark.parametrize(
    "text", [pickle.dumps(RunsCode()), b"", b"{}", b'{"tensor":[[-1],"int8"]}', b'{"tensor":[[1],"save"]}']
)
def test_what_is_no_outline_is_refused(text):
    """A pickle, above all, is not loaded."""
    with pytest.raises(InvalidRequestError, match="another worker's state cannot be read"):
        filled(text, [])


class DyingSender(TrainingState):
    """The state of a rank that dies once it has sent a part of it."""

    @staticmethod
    def _transfer(tensors, *others):
        TrainingState._transfer(tensors[:1], *others)
        os._exit(1)


def at_once(function, *arguments):
    """Call a function that waits for other ranks."""
    return function(*arguments)


def make_state(cls, value):
    """Make a model whose parameters and momentum have one value, and its state."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.data.fill_(value)
        optimizer.state[parameter]["momentum_buffer"] = torch.full_like(parameter, value)
    return model, optimizer, cls(model, optimizer)


def take_part(file, number):
    """Be the one of two ranks that sends its state and dies, or the one that receives."""
    rank = int(number)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    model, optimizer, state = make_state((DyingSender, TrainingState)[rank], float(rank))
    with pytest.raises(RuntimeError, match=r"closed|reset"):
        state.pass_on(0, distributed.group.WORLD, at_once, lacks=True)
    tensors = [*model.parameters(), *(one["momentum_buffer"] for one in optimizer.state.values())]
    json.dump([tensor.flatten().tolist() for tensor in tensors], sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # a process with a broken group may end otherwise


@pytest.mark.ci
def test_a_rank_keeps_its_state_until_the_whole_of_another_has_come(tmp_path):
    """Its sender may be the only one who had a newer one."""
    command = [sys.executable, "-m", "tests.scripts.call", __name__, "take_part", str(tmp_path / "met")]
    ranks = [subprocess.Popen([*command, rank], stdout=subprocess.PIPE, text=True) for rank in "01"]
    _, kept = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 0]
    assert json.loads(kept) == [[1.0] * 6, [1.0] * 2] * 2


TYPES = [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


@pytest.mark.parametrize("dtype", [*TYPES, torch.float64, torch.complex128])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 33])
def test_each_element_counts_wherever_the_tensor_lies(dtype, count):
    """The sum of bits is the same at any place in memory, and another one if an element differs."""
    for offset in range(4):
        tensor = torch.ones(offset + count, dtype=dtype)[offset:]
        assert _bits(tensor) == _bits(tensor.clone())
        for element in range(count):
            changed = torch.ones(offset + count, dtype=dtype)[offset:]
            changed[element] = 0
            assert _bits(changed) != _bits(tensor)


def test_a_sign_counts():
    """Both zeros are equal, but not in their bits."""
    for count in (1, 2, 3):
        assert _bits(torch.zeros(count)) != _bits(-torch.zeros(count))
