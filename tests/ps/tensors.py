"""Tensors to and from a shard without a connection, and the optimisers that shards are tested with."""

import torch

from idl.layout import Group, Layout
from idl.plan import Assignment
from ps.optimizers import DTYPES
from ps.shard import GradientSink, Shard

OPTIMIZERS = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": 1.0, "weight_decay": 0.01}),
    ("adam", {"lr": 0.01}),
    ("adam", {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, "amsgrad": 1.0}),
    ("adamw", {"lr": 0.01}),
    ("adamw", {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, "amsgrad": 1.0}),
]
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def plain_sgd(elements=4, dtype="float64", lr=1.0, **options):
    """Make a shard of zeros whose step subtracts the mean gradient."""
    shard = Shard(Layout(dtype, "sgd", (Group(elements, {"lr": lr}),)), **options)
    shard.initialise(torch.zeros(elements, dtype=DTYPES[dtype]), 0)
    return shard


def values(shard):
    """Return a copy of the shard's parameters."""
    return torch.frombuffer(bytearray(shard.parameters()), dtype=DTYPES[shard.layout.dtype])


def send(sink, data, chunks=None):
    """Write bytes into a sink as a socket would, in chunks of the given sizes and then all."""
    data = memoryview(data)
    chunks = iter(chunks or ())
    while data:
        buffer = sink.get_buffer()
        n = min(len(buffer), len(data), next(chunks, len(data)))
        buffer[:n] = data[:n]
        sink.advance(n)
        data = data[n:]


def wire(gradient):
    """Return a tensor's bytes."""
    return gradient.contiguous().numpy().tobytes()


def slice_of(iteration, start, count, total=None, batch_start=None):
    """Make a slice of an iteration's batch, by default all of it."""
    return Assignment(iteration, 0, start, count, count if total is None else total, batch_start=batch_start)


def push(shard, start, count, total, gradient, chunks=None, groups=None, worker=""):
    """Push a whole slice, with a worker's options for the step if they are given."""
    contribution = shard.begin(slice_of(shard.version, start, count, total), worker)
    if groups is not None:
        shard.set_options(contribution, groups)
    sink = GradientSink(shard, contribution)
    send(sink, wire(gradient), chunks)
    sink.close()


def tensor(*numbers):
    """Make a float64 tensor."""
    return torch.tensor(numbers, dtype=torch.float64)


def slices(counts):
    """Lay counts side by side: (start, count) each."""
    return [(sum(counts[:i]), count) for i, count in enumerate(counts)]
