"""A small training whose loss is a mean over tokens, for tests of weights: sequences of unlike lengths.

Padding depends on how a batch is split. Tokens do not count in every seventh sample, in all samples but three
of iteration 2, and in the whole batch of iteration 5.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from idl.cuts import Cuts
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from tests.services import OpenServices
from worker.torch.loader import DataLoader
from worker.torch.losses import mean

SAMPLES, BATCH, SEED, EPOCHS = 96, 16, 3, 2
STEPS = EPOCHS * SAMPLES // BATCH
WORDS, IGNORED = 13, -100
SPEC = JobSpec(SAMPLES, BATCH, SEED)


class Sequences:
    """Sequences of log-normal lengths, with a target for each token, of which some are ignored."""

    def __init__(self):
        drawn = np.random.default_rng(SEED)
        lengths = np.clip(np.rint(drawn.lognormal(2.0, 0.8, SAMPLES)), 1, 50).astype(int)
        self.inputs = [torch.from_numpy(drawn.integers(0, WORDS, n)) for n in lengths]
        self.targets = [torch.from_numpy(drawn.integers(0, WORDS, n)) for n in lengths]
        order = permutation(SPEC, 0)
        without = [*range(0, SAMPLES, 7), *order[2 * BATCH + 3 : 3 * BATCH], *order[5 * BATCH : 6 * BATCH]]
        for index in without:
            self.targets[index][:] = IGNORED

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def collate(samples):
    """Pad sequences to the longest of these samples."""
    inputs, targets = zip(*samples, strict=True)
    pad = nn.utils.rnn.pad_sequence
    return pad(inputs, batch_first=True), pad(targets, batch_first=True, padding_value=IGNORED)


def tokens_in(batch):
    """Return the number of tokens in a batch that count."""
    return (batch[1] != IGNORED).sum()


def make_model():
    """Return a model that scores words, each by itself, in double precision."""
    generator = torch.Generator().manual_seed(SEED)  # workers are threads, and share the default one
    model = nn.Sequential(
        nn.Embedding(WORDS, 24), nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, WORDS)
    ).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15, generator=generator)
    return model


def make_optimizer(model):
    """Return an optimiser with momentum and decay, so that a wrong gradient leaves traces."""
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=1e-3)


def losses_of(model, inputs, targets):
    """Return the loss of each token, (samples, tokens)."""
    scores = model(inputs).transpose(1, 2)
    return nn.functional.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="none")


def ordinary_loss(model, inputs, targets):
    """Return the mean over the tokens that count, as scripts have it: NaN where none does."""
    return nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets, ignore_index=IGNORED)


def loss_for(weight, session):
    """Return the loss that a loader's weight says, of model, inputs and targets."""
    if weight != "loss":
        return ordinary_loss

    def telling_loss(model, inputs, targets):
        return mean(losses_of(model, inputs, targets), targets != IGNORED, session=session)

    return telling_loss


def make_loader(session=None, **options):
    """Return PyTorch's loader of the sequences, with these further options."""
    own = {"shuffle": True, "seed": SEED, "collate_fn": collate, "session": session}
    return DataLoader(Sequences(), BATCH, **own | options)


def made_up_times(session, rank):
    """Return a clock of a session by which a worker's speed jumps, in other iterations for other ranks."""

    def made_up():
        part = session.assignment
        speed = np.random.default_rng([rank, part.iteration]).lognormal(sigma=1.2)
        return lambda: max(1, part.count) / speed

    return made_up


def check_refused_beside(first, second, said, wait_until):
    """Check that who trains by `second` cannot join who does by `first`; each is called with a session."""
    with (
        OpenServices(2) as services,
        ThreadPoolExecutor() as threads,
        ManagerClient(services.manager) as client,
    ):
        sessions = services.session("w0"), services.session("w1")
        running = threads.submit(first, sessions[0])
        wait_until(lambda: [job.members for job in client.jobs().jobs] == [1], "a member")
        with pytest.raises(InvalidRequestError, match=said):
            second(sessions[1])
        sessions[0].close()
        assert running.exception() is not None


def flat(model):
    """Return a model's parameters, (elements,)."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def train_alone(micro_batch=None, by_samples=False, epochs=EPOCHS, optimizer=make_optimizer):
    """Train in one process, whose gradient is of the mean over the whole batch's tokens.

    Args:
        micro_batch: Samples that are padded and computed together; None: a whole batch.
        by_samples: Whether parts are weighted by their samples instead, which is wrong.
    """
    data, model = Sequences(), make_model()
    steps = optimizer(model)
    for epoch in range(epochs):
        for batch in torch.from_numpy(permutation(SPEC, epoch)).split(BATCH):
            whole = sum(int((data.targets[int(i)] != IGNORED).sum()) for i in batch)
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            for first, stop in Cuts(BATCH, micro_batch or BATCH).within(0, BATCH):
                inputs, targets = collate([data[int(i)] for i in batch[first:stop]])
                losses = losses_of(model, inputs, targets)
                own = int((targets != IGNORED).sum())
                share = own / max(whole, 1) if not by_samples else len(inputs) / BATCH
                (losses.sum() / max(own, 1) * share).backward()
            steps.step()
    return flat(model)
