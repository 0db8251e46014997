"""JAX: losses that are means over tokens, by any workers as by one process of PyTorch's."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from batchsize_manager.client import ManagerClient
from idl.cuts import Cuts
from idl.errors import InvalidRequestError
from idl.plan import permutation
from tests.services import OpenServices, in_threads
from tests.worker import tokens
from tests.worker.tokens import BATCH, EPOCHS, IGNORED, SEED, SPEC
from worker import shard_clients
from worker.jax.gradient import value_and_grad
from worker.jax.loader import DataLoader
from worker.jax.optimizer import distribute
from worker.jax.rules import sgd
from worker.weights import Weights

BUCKET_MB = 100 / 2**18  # a hundred elements
RATE, MOMENTUM = 0.5, 0.9
LAYERS = ("0_embedding", "1_kernel", "1_bias", "2_kernel", "2_bias")  # in the order of the model's parameters


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    """Compute in float64, and have these few parameters pulled early, too."""
    monkeypatch.setattr(shard_clients, "LEAST_EARLY_PULL", 0)
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@functools.cache
def make_data():
    """Return inputs and targets, (samples, tokens) both, padded to the longest sequence."""
    sequences = tokens.Sequences()
    inputs, targets = tokens.collate([sequences[index] for index in range(len(sequences))])
    return inputs.numpy(), targets.numpy()


def make_params():
    """Return the parameters of the model that PyTorch's workers train."""
    values = tokens.make_model().parameters()
    return {name: value.detach().numpy() for name, value in zip(LAYERS, values, strict=True)}


def flat(params):
    """Return parameters, (elements,), in the order of PyTorch's."""
    return np.concatenate([np.ravel(params[name]) for name in LAYERS])


@functools.cache
def alone():
    """Return the parameters that one process trains with whole batches."""
    found = tokens.train_alone(optimizer=lambda model: torch.optim.SGD(model.parameters(), RATE, MOMENTUM))
    return found.numpy()


def tokens_in(batch):
    """Return the number of tokens in a batch that count."""
    return (batch[1] != IGNORED).sum()


def losses(params, batch):
    """Return the loss of each token, NaN where it does not count, and whether it does."""
    inputs, targets = batch
    counts = targets != IGNORED
    hidden = jnp.tanh(params["0_embedding"][inputs] @ params["1_kernel"].T + params["1_bias"])
    scores = jax.nn.log_softmax(hidden @ params["2_kernel"].T + params["2_bias"])
    found = -jnp.take_along_axis(scores, jnp.where(counts, targets, 0)[..., None], axis=2)[..., 0]
    return jnp.where(counts, found, jnp.nan), counts


class Trained:
    """What a worker has trained."""

    def __init__(self):
        self.params = {}
        self.early = 0  # pushes that have begun before the step
        self.without = 0  # slices with samples of which no token counts
        self.loss = {}  # by iteration, with its weight


def train(
    session, rank, weight=tokens_in, micro_batch=None, of_batch=losses, dtype="float64", given=True, loop=None
):
    """Train with one worker's parts of the batches, whose sizes jump, by times that are made up.

    Args:
        weight: Of the loader.
        of_batch: The function of losses.
        given: Whether `distribute` is given the function of gradients.
        loop: A function of parameters and a batch that returns gradients, in place of `value_and_grad`.
    """
    trained = Trained()

    def made_up():
        part = session.assignment
        speed = np.random.default_rng([rank, part.iteration]).lognormal(sigma=1.2)
        return lambda: max(1, part.count) / speed

    session.meter.measure_by(made_up)
    loader = DataLoader(
        make_data(),
        BATCH,
        shuffle=True,
        seed=SEED,
        session=session,
        micro_batch=micro_batch,
        weight=weight,
    )
    gradient_of = value_and_grad(of_batch, None if micro_batch else 4)
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), make_params())
    linked = gradient_of if given else None
    optimizer = distribute(sgd(RATE, MOMENTUM), params, loader, linked, bucket_cap_mb=BUCKET_MB)
    for _ in range(EPOCHS):
        for batch in loader:
            loss, gradient = (loop or gradient_of)(optimizer.params, batch)
            trained.early += session.exchange._begun is not None
            part = session.assignment
            optimizer.step(gradient)
            if weight is not None and part.count:
                trained.loss[part.iteration] = float(loss), session.weights.of(part)
                trained.without += not session.weights.of(part)
    trained.params = optimizer.params
    return trained


def train_with(workers=3, **options):
    """Train with workers; return what they have trained, and the job's records."""
    found = [None] * workers
    with OpenServices(workers, 2) as services:
        sessions = [services.session(f"w{n}") for n in range(workers)]

        def run(n):
            found[n] = train(sessions[n], n, **options)

        in_threads(*(functools.partial(run, n) for n in range(workers)))
        with ManagerClient(services.manager) as client:
            return found, client.history("default", 0)[1]


def difference(trained):
    """Return the largest difference of any worker's parameters from those of one process."""
    return max(float(np.abs(flat(one.params) - alone()).max()) for one in trained)


@pytest.mark.parametrize(
    ("weight", "micro_batch", "dtype", "most"),
    [
        (tokens_in, None, "float64", 1e-13),
        ("loss", None, "float64", 1e-13),
        ("loss", 3, "float64", 1e-13),
        (tokens_in, 3, "float32", 1e-6),
    ],
)
def test_parameters_are_those_of_one_process(weight, micro_batch, dtype, most):
    """Any split trains as one process does, in pushes that begin early; what does not count may be NaN.

    Losses that workers print are means over their tokens, and together the whole batch's.
    """
    trained, records = train_with(weight=weight, micro_batch=micro_batch, dtype=dtype)
    assert difference(trained) < most
    assert len({tuple(record.batch_sizes) for record in records}) > 3
    assert sum(one.without for one in trained) > 0
    assert all(one.early for one in trained)
    first = [one.loss[0] for one in trained if 0 in one.loss]
    batch = tuple(array[permutation(SPEC, 0)[:BATCH]] for array in make_data())
    values, counts = losses(make_params(), batch)
    mean = sum(loss * weight for loss, weight in first) / sum(weight for _, weight in first)
    assert mean == pytest.approx(float(values[counts].mean()), rel=1e-5)


@pytest.mark.parametrize(("samples", "micro_batch_size"), [(1, 3), (7, 3), (9, 3), (5, 8)])
def test_pieces_make_the_weighted_mean(samples, micro_batch_size):
    """So they do for any division into pieces, the padding of the last left out; aux is of samples."""
    drawn = np.random.default_rng(samples)
    batch = {"x": drawn.normal(size=(samples, 4)), "mask": drawn.integers(0, 3, (samples, 4)) / 2}
    batch["mask"][0] = 0
    params = {"w": drawn.normal()}

    def of_piece(params, piece):
        return (jnp.log(jnp.cosh(params["w"] * piece["x"])), piece["mask"]), piece["x"].mean()

    function = value_and_grad(of_piece, micro_batch_size, has_aux=True)
    function.weights = Weights()
    function.weights.declare("loss", 8)
    (loss, aux), gradient = function(params, batch)
    whole, error = max(batch["mask"].sum(), 1e-9), params["w"] * batch["x"]
    assert loss == pytest.approx((batch["mask"] * np.log(np.cosh(error))).sum() / whole, rel=1e-12)
    slopes = batch["mask"] * np.tanh(error) * batch["x"]
    assert gradient["w"] == pytest.approx(slopes.sum() / whole, rel=1e-12)
    if samples % micro_batch_size == 0:
        assert aux == pytest.approx(batch["x"].mean(), rel=1e-12)


def test_a_loop_may_make_gradients_by_itself():
    """With a function of the batch, a mean over tokens by `jax.value_and_grad` is weighted by them."""

    def mean(params, batch):
        values, counts = losses(params, batch)
        return jnp.where(counts, values, 0).sum() / jnp.maximum(counts.sum(), 1)

    trained, _ = train_with(2, loop=jax.jit(jax.value_and_grad(mean)), given=False)
    assert difference(trained) < 1e-13


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_gradients_of_nothing_may_be_nan(micro_batch):
    """Where no token of a micro-batch, or of a slice, counts, its gradient is not looked at."""

    def with_nan(params, batch):
        values, counts = losses(params, batch)
        some = params["1_bias"].sum()
        factor = jnp.where(counts.any(), 0.0, jnp.nan)
        return jnp.where(counts, values, 0) + (some - jax.lax.stop_gradient(some)) * factor, counts

    def total(params):
        values, counts = with_nan(params, (np.zeros((1, 2), int), np.full((1, 2), IGNORED)))
        return jnp.where(counts, values, 0).sum()

    assert np.isnan(jax.grad(total)(make_params())["1_bias"]).all()
    trained, _ = train_with(2, micro_batch=micro_batch, of_batch=with_nan)
    assert sum(one.without for one in trained) > 0
    assert difference(trained) < 1e-13


@pytest.mark.parametrize("micro_batch", [None, 3])
def test_norms_are_weighted_by_tokens(micro_batch):
    """The noise of gradients goes with tokens: a part's samples are its share of the batch's tokens."""
    _, records = train_with(2, micro_batch=micro_batch)
    norms = next(one.norms.norms for one in records if one.norms is not None and not one.norms.iteration)
    sizes = records[0].batch_sizes.tolist()
    if micro_batch:
        sizes = [stop - first for first, stop in Cuts(BATCH, micro_batch).within(0, BATCH)]
    weights, squares = [], []
    for part in np.split(permutation(SPEC, 0)[:BATCH], np.cumsum(sizes)[:-1]):
        batch = tuple(array[part] for array in make_data())

        def mean(params, batch=batch):
            values, counts = losses(params, batch)
            return jnp.where(counts, values, 0).sum() / max(int(tokens_in(batch)), 1)

        weights.append(int(tokens_in(batch)))
        squares.append(
            sum(float((leaf**2).sum()) for leaf in jax.jit(jax.grad(mean))(make_params()).values())
        )
    expected = np.dot(weights, squares) * BATCH / sum(weights)
    assert (norms.contributions, norms.samples) == (np.count_nonzero(weights), BATCH)
    assert norms.weighted == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weight": lambda batch: batch[1].size}, r"is a mean over \d+ by weight=, and over \d+ by loss_fn"),
        ({"weight": None}, 'averaged over samples: make the loader with weight="loss"'),
        ({"given": False}, "give distribute this function"),
        ({"of_batch": lambda *given: jnp.ones(len(given[1][0]))}, "loss_fn gave no weights"),
        ({"of_batch": lambda *given: (jnp.ones((4, 2)), jnp.ones(4))}, r"\(4, 2\) and weights of \(4,\)"),
        ({"of_batch": lambda *given: (jnp.ones(4), -jnp.ones(4))}, "a weight of -16: must be"),
        ({"of_batch": lambda *given: (jnp.ones(4), jnp.full(4, math.nan))}, "a weight of nan: must be"),
        ({"weight": "tokens"}, "weight='tokens': must be a function"),
        ({"weight": "loss", "loop": lambda params, batch: (0.0, params)}, "is to be that of an evenpace.jax"),
    ],
    ids=["differ", "none", "unknown", "forgotten", "shape", "negative", "nan", "name", "silent"],
)
def test_wrong_uses_are_refused(options, said):
    """The error names the value, and what is allowed."""
    with OpenServices(1) as services, pytest.raises(InvalidRequestError, match=said):
        train(services.session("w0"), 0, **options)


def test_weights_of_one_worker_alone_are_refused(wait_until):
    """All workers' gradients are means over tokens, or none's: the manager compares at join."""
    without = functools.partial(train, rank=1, weight=None)
    tokens.check_refused_beside(functools.partial(train, rank=0), without, "weight_limit None", wait_until)
