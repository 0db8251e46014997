"""Training with the parameter server on the device: parameters as one process's, blocking and ahead."""

import contextlib
import threading
from typing import Any

import torch
from torch import nn

from idl.bounds import Bounds
from idl.plan import JobSpec, permutation
from lab.gpu.setup import Setup, need

_SAMPLES, _FEATURES, _CLASSES, _BATCH = 400, 32, 10, 64
_BOUNDS = (Bounds(), Bounds(maximum=20), Bounds(maximum=7))  # of three workers
MOST_DIFFERENCE = 1e-9
SPEC = JobSpec(_SAMPLES, _BATCH, seed=5)
TOTALS = (_BATCH, _SAMPLES % _BATCH)  # of an epoch's batches


def run(setup: Setup) -> dict[str, Any]:
    """Three uneven workers, in float64, under each policy and lookahead."""
    need("thriftpy2", "psutil")
    epochs = 2 if setup.quick else 12
    alone = train_alone(epochs, setup)
    result = {}
    runs = [("proportional", 0), ("leader_straggler", 2)]
    for policy, lookahead in runs if setup.quick else [*runs, ("leader_straggler", 0), ("proportional", 3)]:
        difference, counts = _train(policy, lookahead, epochs, alone, setup)
        if difference > MOST_DIFFERENCE:
            raise AssertionError(f"{policy}, lookahead {lookahead}: parameters differ by {difference}")
        result[f"{policy}, lookahead {lookahead}"] = {"difference": difference, "last_batch_sizes": counts}
    return result


def data(setup: Setup) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes, the same in every process."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(_SAMPLES, _FEATURES, dtype=torch.float64, generator=generator)
    classes = torch.randint(_CLASSES, (_SAMPLES,), generator=generator)
    return inputs.to(setup.device), classes.to(setup.device)


def make_model(setup: Setup) -> nn.Module:
    """Always with the same first parameters."""
    torch.manual_seed(2)
    layers = [nn.Linear(_FEATURES, 128), nn.Tanh(), nn.LayerNorm(128), nn.Linear(128, _CLASSES)]
    return nn.Sequential(*layers).double().to(setup.device)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Of every process."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters, (elements,)."""
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def train_alone(epochs: int, setup: Setup) -> torch.Tensor:
    """The parameters of one process that takes the whole batches."""
    inputs, classes = data(setup)
    model = make_model(setup)
    optimizer = make_optimizer(model)
    for epoch in range(epochs):
        for batch in torch.from_numpy(permutation(SPEC, epoch)).to(setup.device).split(_BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
            optimizer.step()
    return flat(model)


def _train(
    policy: str, lookahead: int, epochs: int, alone: torch.Tensor, setup: Setup
) -> tuple[float, list[int]]:
    """The largest difference from `alone` over all workers, and the sizes of the last batch's parts."""
    from lab.gpu.services import services

    finals: list[Any] = [None] * len(_BOUNDS)
    models = [make_model(setup) for _ in _BOUNDS]  # made one after the other: they share the random numbers
    with (
        services(policy, workers=len(_BOUNDS), lookahead=lookahead) as addresses,
        contextlib.ExitStack() as through,  # who leaves early leaves a batch that is too large for the others
    ):
        threads = []
        for index, model in enumerate(models):
            arguments = (index, model, addresses, epochs, finals, through, setup)
            threads.append(threading.Thread(target=_worker, args=arguments, daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(max(5.0, setup.left))
    failed = [final for final in finals if not isinstance(final, tuple)]
    if failed:
        raise RuntimeError(f"a worker did not end well: {failed[0]!r}")
    counts = [sizes for _, sizes in finals]
    for parts in zip(*counts, strict=True):
        assert sum(parts) in TOTALS, parts
    difference = max(float((parameters - alone).abs().max()) for parameters, _ in finals)
    return difference, [sizes[-1] for sizes in counts]


def _worker(
    index: int,
    model: nn.Module,
    addresses: Any,
    epochs: int,
    finals: list[Any],
    through: contextlib.ExitStack,
    setup: Setup,
) -> None:
    from worker.session import Session, SessionConfig
    from worker.torch.loader import DataLoader
    from worker.torch.memory_watch import watch_memory
    from worker.torch.optimizer import distribute

    manager, shard = addresses
    config = SessionConfig(
        manager, (shard,), worker=f"worker-{index}", bounds=_BOUNDS[index], barrier_timeout=60.0
    )
    session = Session(config)
    try:
        watch_memory(session, setup.device)
        inputs, classes = data(setup)
        dataset: Any = list(range(_SAMPLES))
        loader = DataLoader(dataset, _BATCH, session=session, shuffle=True, seed=SPEC.seed)
        optimizer = distribute(make_optimizer(model), loader)
        sizes = []
        for _ in range(epochs):
            for batch in loader:
                batch = batch.to(setup.device)  # noqa: PLW2901 - as training loops do
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()
                optimizer.step()
                sizes.append(len(batch))
        finals[index] = (flat(model), sizes)
        through.callback(session.close)
    except Exception as error:  # noqa: BLE001 - raised by the part
        finals[index] = error
        session.close()
