"""The JAX adapter against real services, its workers as threads of this process."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from idl.synchronisation import Synchronisation
from tests.services import OpenServices, in_threads
from tests.worker.contract import NOBODY
from worker.jax.gradient import value_and_grad
from worker.jax.loader import DataLoader
from worker.jax.optimizer import distribute
from worker.jax.rules import sgd
from worker.session import Session
from worker.torch.loader import DataLoader as TorchDataLoader
from worker.torch.optimizer import distribute as torch_distribute


@pytest.fixture
def job():
    """Start services for n workers, and yield a function that makes sessions with them."""
    with contextlib.ExitStack() as stack:

        def start(workers, shards=1):
            return stack.enter_context(OpenServices(workers, shards, silence=120.0)).session

        yield start


class Squares:
    """A map-style data set of dictionaries."""

    def __len__(self):
        return 31

    def __getitem__(self, index):
        return {"index": index, "square": np.full(2, index * index)}


INDICES = np.arange(31)


@pytest.mark.parametrize(
    "data",
    [{"index": INDICES, "square": np.stack([INDICES**2] * 2, axis=1)}, Squares()],
    ids=["arrays", "map"],
)
def test_batches_have_the_datas_structure(job, data):
    """Dictionaries come in the order of the plan, whether they are of arrays or of samples."""
    loader = DataLoader(data, 10, session=job(1)("w"), shuffle=True, seed=3)
    optimizer = distribute(sgd(0.1), jnp.zeros(()), loader)
    seen = []
    for batch in loader:
        assert np.array_equal(batch["square"], np.stack([batch["index"] ** 2] * 2, axis=1))
        seen += batch["index"].tolist()
        optimizer.step(jnp.ones(()))
    assert seen == permutation(JobSpec(31, 10, seed=3), 0).tolist()


def test_exact_sums_are_refused_in_one_line():
    """The error says who can, before anything is computed."""
    with OpenServices(1, synchronisation=Synchronisation(exact=True)) as services:
        loader = DataLoader(np.zeros((8, 1)), 4, session=services.session("w"), micro_batch=2)
        with pytest.raises(InvalidRequestError, match=r"--exact.* evenpace\.jax cannot: .* evenpace\.keras"):
            distribute(sgd(0.1), jnp.zeros(()), loader)


CHANGES = {
    "whole": lambda optimizer: setattr(optimizer, "params", {"w": jnp.ones(1)}),
    "one": lambda optimizer: optimizer.params.update(w=jnp.ones(1)),
    "statistics": lambda optimizer: setattr(optimizer, "statistics", [jnp.ones(1)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_parameters_that_are_set_are_refused(job, change):
    """The next pull would overwrite them, as a whole or one of a pytree's."""
    loader = DataLoader(np.zeros(4), 2, session=job(1)("w"))
    optimizer = distribute(sgd(1.0), {"w": jnp.zeros(1)}, loader, statistics=[jnp.zeros(1)])
    batches = iter(loader)
    next(batches)
    optimizer.step({"w": jnp.ones(1)}, [jnp.ones(1)])
    next(batches)
    CHANGES[change](optimizer)
    with pytest.raises(InvalidRequestError, match="params or statistics were set, but"):
        optimizer.step({"w": jnp.ones(1)}, [jnp.ones(1)])


def test_parameters_of_a_past_step_stay_what_they_were(job):
    """The next pull does not change arrays that a script has kept."""
    loader = DataLoader(np.zeros(8), 1, session=job(1)("w"))
    optimizer = distribute(sgd(1.0), {"w": jnp.zeros(1000)}, loader)
    kept = []
    for _ in loader:
        optimizer.step({"w": jnp.ones(1000)})
        kept.append(optimizer.params["w"])
    for i, array in enumerate(kept):
        assert np.array_equal(array, np.full(1000, -(i + 1.0)))


def test_jax_and_pytorch_train_one_job(job):
    """Workers with different frameworks and equal tensors end as one process on the whole batches."""
    generator = np.random.default_rng(0)
    inputs, targets = generator.normal(size=(50, 3)), generator.normal(size=(50, 2))
    plan = {"shuffle": True, "seed": 3}
    session = job(2)
    results = {}

    def model():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()

    def losses(params, batch):
        inputs, targets = batch
        kernel, bias, last_kernel, last_bias = params
        output = jnp.tanh(inputs @ kernel.T + bias) @ last_kernel.T + last_bias
        return ((output - targets) ** 2).mean(axis=1)

    def with_jax():
        with jax.enable_x64(True):
            loader = DataLoader(
                (inputs, targets), 16, session=session("jax", bounds=Bounds(maximum=13)), **plan
            )
            loader.session.join()
            assert torch_has_opened.wait(240)  # so the job starts from its parameters
            step = value_and_grad(losses, micro_batch_size=4)
            params = [np.zeros((4, 3)), np.zeros(4), np.zeros((2, 4)), np.zeros(2)]
            optimizer = distribute(sgd(0.1, momentum=0.9), params, loader)
            for _ in range(3):
                for batch in loader:
                    optimizer.step(step(optimizer.params, batch)[1])
            results["jax"] = np.concatenate([np.ravel(leaf) for leaf in optimizer.params])

    def fit(net, optimizer, batches):
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(net(inputs), targets).backward()
            optimizer.step()
        return nn.utils.parameters_to_vector(net.parameters()).detach().numpy()

    def with_torch():
        loader = TorchDataLoader(dataset, 16, session=session("torch", bounds=Bounds(maximum=5)), **plan)
        optimizer = torch_distribute(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loader)
        torch_has_opened.set()
        results["torch"] = fit(net, optimizer, (batch for _ in range(3) for batch in loader))

    dataset = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
    torch_has_opened = threading.Event()
    net = model()  # not beside the other thread, whose loader uses PyTorch's generator
    in_threads(with_torch, with_jax)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    orders = [permutation(JobSpec(50, 16, seed=3), epoch) for epoch in range(3)]
    alone = fit(net, optimizer, (dataset[part] for order in orders for part in np.split(order, (16, 32, 48))))
    assert np.abs(results["torch"] - alone).max() < 1e-12
    assert np.abs(results["jax"] - alone).max() < 1e-12


def test_a_gradient_of_another_form_is_refused(job):
    """A pytree or a shape other than the parameters' is refused by name, before a push."""
    loader = DataLoader(np.zeros(4), 2, session=job(1)("w"))
    optimizer = distribute(sgd(0.1), {"w": jnp.zeros(3)}, loader)
    for wrong in (jnp.zeros(3), {"w": jnp.zeros(4)}, {"v": jnp.zeros(3)}):
        with pytest.raises(InvalidRequestError, match=r"'w'.*shapes \[\(3,\)\]"):
            optimizer.step(wrong)


def test_bad_arguments_are_named():
    """Arguments that are not allowed are refused with their values, before any connection."""
    for data, problem in (
        ((np.zeros(3), np.zeros(4)), r"shapes \[\(3,\), \(4,\)\]"),
        (np.float32(3), "map-style"),
        (object(), "map-style"),
        (np.zeros(()), r"shapes \[\(\)\]"),
    ):
        with pytest.raises(InvalidRequestError, match=problem):
            DataLoader(data, 1, session=Session(NOBODY))
    loader = DataLoader(np.zeros(10), 1, session=Session(NOBODY))
    with pytest.raises(InvalidRequestError, match=r"optax's.*use evenpace\.jax\.sgd"):
        distribute(optax.sgd(0.1), jnp.zeros(3), loader)
    with pytest.raises(InvalidRequestError, match="steps is of int32"):
        distribute(sgd(0.1), {"w": jnp.zeros(3), "steps": jnp.arange(3)}, loader)
    with pytest.raises(InvalidRequestError, match="nothing to train"):
        distribute(sgd(0.1), {}, loader)
