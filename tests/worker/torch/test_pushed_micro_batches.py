"""The sum over micro-batches is pushed while the last one's backward pass completes it."""

import copy
import itertools
from dataclasses import astuple

import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from idl.bounds import Bounds
from idl.cuts import Cuts
from idl.plan import permutation
from tests.services import OpenServices, in_threads
from tests.worker.torch.test_backward_push import (
    BATCH,
    BUCKET_MB,
    EPOCHS,
    SAMPLES,
    SEED,
    SPEC,
    TRIALS,
    Rows,
    assert_passes_are_timed,
    leave,
    make_model,
    make_optimizer,
    train_alone,
)
from tests.worker.torch.test_memory_watch import exhaust
from worker.torch.loader import DataLoader
from worker.torch.memory_watch import MemoryExhaustedError, within_memory
from worker.torch.micro_batches import micro_batches
from worker.torch.optimizer import distribute

MICRO_BATCH = 3
STEPS = EPOCHS * SAMPLES // BATCH


class Trained:
    """What a worker has trained, and when its pushes have begun."""

    def __init__(self):
        self.values = torch.empty(0)  # the model's parameters and buffers, (elements,), in double precision
        self.attempts = set()  # the job's attempts that it has seen
        # By iteration, for each of its micro-batches, whether a push had begun once it was computed.
        self.at_ends = {}
        self.at_once = {}  # by iteration, the micro-batches that it was to compute at once
        self.factors = []  # of each micro-batch, what gradients were to be multiplied by


def state_of(model):
    """Return a model's parameters and buffers, (elements,), in double precision."""
    return torch.cat([tensor.double().flatten() for tensor in model.state_dict().values()])


def mean_error(model, inputs, targets):
    """Return the mean squared error, in the model's dtype."""
    dtype = next(model.parameters()).dtype
    return nn.functional.mse_loss(model(inputs.to(dtype)), targets.to(dtype))


def train(
    session,
    model=None,
    change=leave,
    in_pass=lambda iteration, left: None,
    micro_batch=MICRO_BATCH,
    **options,
):
    """Train with one worker's micro-batches of each batch.

    Args:
        model: The model; None for the usual one.
        change: Called with iteration and model before each step.
        in_pass: Called as each backward pass reaches the first layer, with the iteration, and the number of
            micro-batches of the slice that come after this one.
        micro_batch: Samples of a micro-batch.
        options: Those of `distribute`.
    """
    trained, model = Trained(), model or make_model()
    optimizer = model.optimizer = make_optimizer(model)
    loader = DataLoader(Rows(), BATCH, shuffle=True, seed=SEED, session=session, micro_batch=micro_batch)
    distribute(optimizer, loader, model, **({"bucket_cap_mb": BUCKET_MB} | options))
    left = 0

    def watch(module, inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: in_pass(session.assignment.iteration, left))

    model[0].register_forward_hook(watch)
    for _ in range(EPOCHS):
        for batch in loader:
            now = session.assignment
            begun = trained.at_ends[now.iteration] = []
            trained.at_once[now.iteration] = now.at_once
            optimizer.zero_grad()
            for number, (inputs, targets) in enumerate(micro_batches(batch)):
                left = len(batch) - number - 1
                mean_error(model, inputs, targets).backward()
                begun.append(session.exchange._begun is not None)
                trained.factors.append(loader.accumulation.last_factor)
            change(now.iteration, model)
            trained.attempts.add(now.attempt)
            optimizer.step()
    trained.values = state_of(model)
    return trained


def train_with(workers=1, shards=1, model=None, micro_batch=MICRO_BATCH, **options):
    """Train with workers of which all but the first have one micro-batch; return them, and the records."""
    found = [None] * workers
    most = [BATCH] + [micro_batch] * (workers - 1)
    with OpenServices(workers, shards) as services:
        sessions = [services.session(f"w{n}", bounds=Bounds(maximum=most[n])) for n in range(workers)]

        def run(n):
            found[n] = train(sessions[n], copy.deepcopy(model), micro_batch=micro_batch, **options)

        in_threads(*(lambda n=n: run(n) for n in range(workers)))
        with ManagerClient(services.manager) as client:
            records = client.history("default", 0)[1]
    return found, records


def train_alone_in_micro_batches(model):
    """Train in one process, whose gradient is the weighted sum of the micro-batches' gradients."""
    rows, model = Rows(), copy.deepcopy(model)
    optimizer = make_optimizer(model)
    layers = [layer for layer in model if isinstance(layer, nn.BatchNorm1d)]
    for epoch in range(EPOCHS):
        for batch in torch.from_numpy(permutation(SPEC, epoch)).split(BATCH):
            start = [(layer.running_mean.clone(), layer.running_var.clone()) for layer in layers]
            change = [[0.0, 0.0] for _ in layers]
            for parameter in model.parameters():  # also those that no micro-batch uses
                parameter.grad = torch.zeros_like(parameter)
            for first, stop in Cuts(BATCH, MICRO_BATCH).within(0, BATCH):
                part = batch[first:stop]
                for layer, (mean, variance) in zip(layers, start, strict=True):
                    layer.running_mean.copy_(mean)
                    layer.running_var.copy_(variance)
                weight = len(part) / BATCH
                (weight * mean_error(model, rows.inputs[part], rows.targets[part])).backward()
                for layer, both, sums in zip(layers, start, change, strict=True):
                    sums[0] += weight * (layer.running_mean - both[0])
                    sums[1] += weight * (layer.running_var - both[1])
            for layer, both, sums in zip(layers, start, change, strict=True):
                layer.running_mean.copy_(both[0] + sums[0])
                layer.running_var.copy_(both[1] + sums[1])
                layer.num_batches_tracked -= Cuts(BATCH, MICRO_BATCH).number(BATCH) - 1
            optimizer.step()
    return state_of(model)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_bits_and_norms_are_those_of_a_push_by_the_step(dtype):
    """The sum is divided as the end of the loop divides it; norms of micro-batches are the same as well."""
    model = make_model().to(dtype)
    (pushed,), records = train_with(model=model, micro_batch=5)
    (by_step,), expected = train_with(model=model, micro_batch=5, bucket_cap_mb=None)
    assert [begun[-1] for begun in pushed.at_ends.values()] == [k >= TRIALS for k in range(STEPS)]
    assert not any(map(any, by_step.at_ends.values()))
    assert pushed.attempts == {0}, "none was given up for its bits"
    assert_passes_are_timed(records)
    assert torch.equal(pushed.values, by_step.values)
    known = [one.norms for one in records if one.norms is not None]
    others = [other.norms for other in expected if other.norms is not None]
    assert len(known) >= STEPS - 1
    for one, other in zip(known, others, strict=True):
        assert one.iteration == other.iteration
        own, others_own = (astuple(each.norms)[:-1] for each in (one, other))  # without weights, of which
        assert one.norms.weight is other.norms.weight is None  # there are none
        assert own == pytest.approx(others_own, rel=1e-5), "as rounded in another order"


class Sometimes(nn.Module):
    """A layer that adds to its input where a micro-batch's first number is above 0, and else is not used."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width, dtype=torch.float64)

    def forward(self, inputs):
        """Add the layer's output, or do not."""
        return inputs + self.layer(inputs) if inputs[0, 0] > 0 else inputs


@pytest.mark.slow
def test_a_layer_that_some_micro_batches_do_not_use_waits_for_the_step():
    """Where the last one does not use it, its gradient is that of the others, and is pushed by the step.

    Running statistics go with the last bucket: the mean over all micro-batches of all workers.
    """
    torch.manual_seed(SEED)
    layers = list(make_model())
    # With the usual eps, rounding errors of variances over three samples grow ten millionfold.
    norms = [nn.BatchNorm1d(300, eps=0.1, dtype=torch.float64) for _ in range(2)]
    model = nn.Sequential(layers[0], norms[0], *layers[1:3], norms[1], *layers[3:], Sometimes(5))
    found, _ = train_with(2, 2, model=model)
    alone = train_alone_in_micro_batches(model)
    for trained in found:
        assert trained.attempts == {0}
        torch.testing.assert_close(trained.values, alone, rtol=0, atol=1e-12)
        last = [begun[-1] for k, begun in trained.at_ends.items() if k >= TRIALS]
        assert any(last)
        assert not all(last), "it is in the first bucket, for which all others wait"


def test_micro_batches_at_once_are_pushed_by_the_step():
    """Each has gradients of its own then, which are added after its pass."""
    with OpenServices(1) as services:
        trained = train(services.session("w", bounds=Bounds(at_once=2)))
    assert set(trained.at_once.values()) == {1, 2}
    assert trained.attempts == {0}
    for iteration, begun in trained.at_ends.items():
        assert begun[-1] == (iteration >= TRIALS and trained.at_once[iteration] == 1)
    torch.testing.assert_close(trained.values, train_alone(leave), rtol=0, atol=1e-12)


def run_out_of_memory(session, fails):
    """Train; the pass of a slice's last micro-batch fails half-way where `fails(at_once)` says so."""
    model = make_model()
    optimizer = make_optimizer(model)
    loader = DataLoader(Rows(), BATCH, shuffle=True, seed=SEED, session=session, micro_batch=MICRO_BATCH)
    distribute(optimizer, loader, model, bucket_cap_mb=BUCKET_MB)
    begun = []

    def check(gradient):
        if loader.accumulation._left == 1 and fails(session.limits.at_once):
            begun.append(session.exchange._begun is not None)
            exhaust()

    def step(inputs, targets):
        hidden = model[0](inputs)
        hidden.register_hook(check)
        nn.functional.mse_loss(model[1:](hidden), targets).backward()

    run = within_memory(step, model, loader)
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            run(batch)
            optimizer.step()
    return state_of(model), begun


@pytest.mark.slow
def test_a_pass_that_is_tried_again_alone_is_pushed_once():
    """Of two at once the failed one has pushed nothing; alone it is the last pass, which pushes."""
    with OpenServices(1) as services:
        session = services.session("w", bounds=Bounds(at_once=2))
        values, begun = run_out_of_memory(session, lambda at_once: at_once > 1)
    assert begun == [False]
    torch.testing.assert_close(values, train_alone(leave), rtol=0, atol=1e-12)


def test_a_pass_that_fails_when_its_push_has_begun_leaves_no_step():
    """The worker ends with the error, and no shard has got the whole gradient."""
    calls = itertools.count()
    with OpenServices(1, 2) as services:
        session = services.session("w")
        with pytest.raises(MemoryExhaustedError, match="does not fit"):
            run_out_of_memory(session, lambda at_once: next(calls) == TRIALS + 1)
        assert session.exchange._begun is not None
        assert not services.complete()
        versions = {job.shard.version for shard in services.shards for job in shard.jobs}
    assert versions == {TRIALS + 1}
