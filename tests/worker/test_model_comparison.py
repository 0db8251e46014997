"""Workers whose models differ cannot train together, and the error names the tensor."""

import uuid
from collections import OrderedDict

import pytest
import torch
from torch import nn

import idl
from idl.errors import InvalidRequestError
from rpc.client import Client
from tests.services import OpenServices, open_request
from tests.worker.squares import Squares
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

_ps = idl.parameter_server
WEIGHT, BIAS = ("fc.weight", [2, 3], "float32"), ("fc.bias", [4], "float32")


@pytest.fixture
def opened(shard):
    """Yield a function that opens one job of ten elements as a worker, with these tensors."""
    name = f"job-{uuid.uuid4().hex}/run"
    client = Client(_ps.ParameterServer, shard, "shard", call_timeout=120)

    def opened(worker, tensors):
        identity = idl.common.Identity(name, worker, uuid.uuid4().hex)
        told = None if tensors is None else [_ps.Tensor(*tensor) for tensor in tensors]
        client.call("open", open_request(identity, 10, tensors=told))

    yield opened
    client.close()


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([WEIGHT, ("fc.bias", [2, 2], "float32")], r"tensor 1 of 'b'.*\(2, 2\).*that of 'a'.*\(4,\)"),
        ([("fc.weight", [3, 2], "float32"), BIAS], r"tensor 0 .*shape \(3, 2\).*shape \(2, 3\)"),
        ([WEIGHT, ("fc.bias", [4], "float16")], r"tensor 1 .*float16.*float32"),
        ([WEIGHT, ("head.bias", [4], "float32")], r"tensor 1 .*'head.bias'.*'fc.bias'"),
        ([BIAS, WEIGHT], r"tensor 0 .*'fc.bias'.*'fc.weight'"),
        ([WEIGHT], r"tensor 1 of 'b' is missing, but that of 'a' is 'fc.bias'"),
        ([WEIGHT, BIAS, WEIGHT], r"tensor 2 of 'b' is 'fc.weight'.* that of 'a' is missing"),
    ],
)
def test_the_first_difference_is_named(opened, others, said):
    """The error has the first tensor that differs, both workers, and both values."""
    opened("a", [WEIGHT, BIAS])
    with pytest.raises(InvalidRequestError, match=said):
        opened("b", others)
    opened("c", [WEIGHT, BIAS])


def test_what_is_not_known_is_not_compared(opened):
    """A worker that declares no tensors, or no names, is accepted; the first that does is compared with."""
    opened("a", None)
    opened("b", [("", [2, 3], "float32"), BIAS])
    opened("c", [])
    opened("d", [WEIGHT, ("", [4], "float32")])
    with pytest.raises(InvalidRequestError, match=r"tensor 1 of 'e' is 'fc.weight'.*'b'"):
        opened("e", [("", [2, 3], "float32"), ("fc.weight", [4], "float32")])


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (("a\nb", [1], "float32"), "tensor 0, name"),
        (("n" * 1001, [1], "float32"), "tensor 0, name"),
        ((None, [1], "float32"), "tensor 0, name is missing"),
        (("n", None, "float32"), "tensor 0, shape"),
        (("n", [-1], "float32"), "tensor 0, shape -1"),
        (("n", [1] * 65, "float32"), "tensor 0, shape"),
        (("n", [1], ""), "tensor 0, dtype"),
        (("n", [1], None), "tensor 0, dtype"),
    ],
)
def test_rubbish_is_refused(opened, bad, said):
    """An invalid tensor is refused with its value, and the connection stays open."""
    with pytest.raises(InvalidRequestError, match=said):
        opened("a", [bad])
    opened("a", [WEIGHT])


@pytest.mark.parametrize("given", ["optimiser", "model", "compiled model"])
def test_torchs_names_are_told(given):
    """Those of the optimiser or of the model, without what compiling it adds."""
    network = nn.Sequential(OrderedDict(front=nn.Linear(3, 2)))
    parameters = network.named_parameters() if given == "optimiser" else network.parameters()
    model = {"optimiser": None, "model": network, "compiled model": torch.compile(network)}[given]
    with OpenServices(1) as services:
        loader = DataLoader(Squares(10), 4, session=services.session("w"))
        distribute(torch.optim.SGD(parameters, lr=0.1), loader, model)
        (job,) = services.shards[0].jobs
        assert [tensor.name for tensor in job.model.tensors] == ["front.weight", "front.bias"]
