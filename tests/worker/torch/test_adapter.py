"""The PyTorch adapter against real services, its workers as threads of this process."""

import contextlib
import gc
import multiprocessing
import threading
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from idl.synchronisation import Synchronisation
from tests.scripts import load_large_samples
from tests.services import (
    OpenServices,
    has_ended,
    in_threads,
    is_frozen,
    manager_service,
    serving,
    shard_service,
)
from tests.worker.processes import processes
from tests.worker.squares import Squares
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute


@pytest.fixture
def job():
    """Start services for n workers, and yield a function that makes sessions with them."""
    with contextlib.ExitStack() as stack:

        def start(workers, **options):
            patient = {"silence": 120.0}  # who is only held up keeps its part
            return stack.enter_context(OpenServices(workers, **patient, **options)).session

        yield start


@pytest.mark.slow
def test_loading_processes_end_with_their_loader(job, wait_until):
    """Loading processes end as soon as the loader is released, without a garbage collection."""
    before = set(multiprocessing.active_children())
    loader = DataLoader(Squares(10), 4, session=job(1)("w"), num_workers=2)
    optimizer = distribute(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0), loader)
    for _ in loader:
        optimizer.step()
    loading = set(multiprocessing.active_children()) - before
    assert len(loading) == 2

    gc.disable()
    try:
        del loader
        wait_until(lambda: not any(process.is_alive() for process in loading), "their end")
    finally:
        gc.enable()


def test_loading_processes_end_with_a_worker_that_is_killed(tmp_path, wait_until):
    """A loading process whose samples nobody reads any more ends, though nobody tells it to."""
    script = Path(load_large_samples.__file__)
    with (
        serving(manager_service()) as manager,
        serving(shard_service()) as shard,
        processes(tmp_path, manager, [shard], ["w"], {"w": "1:report:0"}, script) as workers,
    ):
        wait_until(lambda: is_frozen(workers["w"]), "the worker to be at its point")
        loading = psutil.Process(workers["w"].pid).children(recursive=True)
        assert loading
        workers["w"].kill()
        try:
            wait_until(lambda: all(map(has_ended, loading)), "their end", seconds=30)
        finally:
            for process in loading:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()


def test_what_is_to_be_trained_is_fixed(job):
    """Parameters that are unfrozen or added after distribute are refused by name, and training goes on."""
    loader = DataLoader(Squares(12), 4, session=job(1)("w"))
    model = nn.ModuleDict({"first": nn.Linear(1, 1), "last": nn.Linear(1, 1)})
    model["last"].requires_grad_(False)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=1.0), loader, model)
    extra = {"params": [nn.Parameter(torch.zeros(1))]}
    with pytest.raises(InvalidRequestError, match=r"add all parameter groups before .* lr=0 until then"):
        optimizer.add_param_group(extra)
    before = model["first"].weight.item()
    for _ in loader:
        model["first"].weight.grad = torch.ones(1, 1)
        model["last"].bias.requires_grad_(True)
        with pytest.raises(InvalidRequestError, match=r"last\.bias requires a gradient, but did not"):
            optimizer.step()
        model["last"].bias.requires_grad_(False)
        model["first"].bias.requires_grad_(False)  # which counts as one with a gradient of zeros
        optimizer.step()
    assert model["first"].weight.item() == pytest.approx(before - 3)


def test_an_optimisers_hooks_are_called(job):
    """Those of before each step, which may change gradients, and those of after it, with new parameters."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: nn.utils.clip_grad_value_(model.parameters(), 2.0))
    loader = DataLoader(Squares(6), 2, session=job(1)("w"))
    distribute(optimizer, loader)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(model.weight.item()))
    for batch in loader:
        optimizer.zero_grad()
        model(batch["square"].float().unsqueeze(1)).mean().backward()  # 0.5, 6.5 and 20.5
        optimizer.step()
    assert seen == [-0.5, -2.5, -4.5]


def test_a_scheduler_may_be_made_before_distribute(job, recwarn):
    """PyTorch's own warnings about the order of steps come where they should, and not otherwise."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    loader = DataLoader(torch.zeros(8, 1), batch_size=4, session=job(1)("w"))
    distribute(optimizer, loader)
    for _ in loader:
        optimizer.step()
        scheduler.step()
    assert scheduler.get_last_lr() == [0.25]
    assert not [warning for warning in recwarn if "optimizer.step()" in str(warning.message)]


def test_sparse_gradients_are_refused(job):
    """A sparse gradient's parameter is named, and the step may be taken with a dense one."""
    loader = DataLoader(Squares(4), 4, session=job(1)("w"))
    model = nn.Embedding(4, 1, sparse=True)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=1.0), loader, model)
    before = model.weight.detach().clone()
    for batch in loader:
        model(batch["index"]).sum().backward()
        with pytest.raises(InvalidRequestError, match=r"weight has a sparse gradient.*sparse=False"):
            optimizer.step()
        model.weight.grad = model.weight.grad.to_dense()
        optimizer.step()
    assert torch.equal(model.weight, before - 1)


def test_bad_options_and_lazy_layers_are_named():
    """Options that are not allowed are refused with their values, before any connection."""
    config = SessionConfig(("127.0.0.1", 1), (("127.0.0.1", 1),))
    for data, size, options, said in (
        (iter([]), 1, {}, "map-style"),
        (Squares(10), 1, {"num_workers": -1}, "num_workers -1"),
        (
            Squares(4),
            2,
            {"seed": 3, "generator": torch.Generator()},
            "seed 3: give a seed or a generator, not both",
        ),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            DataLoader(data, size, session=Session(config), **options)
    session = Session(config)
    loader = DataLoader(Squares(10), 1, session=session, generator=torch.Generator().manual_seed(7))
    assert session.training.declared.seed == 7
    with pytest.raises(InvalidRequestError, match="loader already"):
        DataLoader(Squares(10), 1, session=session)
    with pytest.raises(ValueError, match="RMSprop"):
        distribute(torch.optim.RMSprop(nn.Linear(1, 1).parameters()), loader)
    with pytest.raises(InvalidRequestError, match=r"lazy layers.* run it once before"):
        distribute(torch.optim.SGD(nn.LazyLinear(1).parameters(), lr=0.1), loader)


def test_a_closure_gives_its_loss(job):
    """step(closure) runs the closure and returns its loss, as torch's optimisers do."""
    loader = DataLoader(Squares(4), 2, session=job(1)("w"))
    model = nn.Linear(1, 1)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader)
    next(iter(loader))

    def closure():
        loss = model(torch.ones(2, 1)).pow(2).mean()
        loss.backward()
        return loss

    before = model.weight.item()
    assert optimizer.step(closure).item() >= 0
    assert model.weight.item() != before


def test_torchs_own_defaults_may_be_given(job):
    """Scripts pass them on; another value of what an evenpace loader lacks is refused, with what to do."""
    defaults = {"sampler": None, "batch_sampler": None, "timeout": 0, "multiprocessing_context": None}
    more = {"collate_fn": None, "prefetch_factor": None, "shuffle": None, "in_order": True}
    session = job(1)("w")
    loader = DataLoader(Squares(8), 4, session=session, **defaults, **more)
    optimizer = distribute(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), loader)
    for _ in loader:
        optimizer.step()
    for wrong in ({"sampler": [0]}, {"batch_sampler": [[0]]}):
        with pytest.raises(InvalidRequestError, match=r"sampler=.*: an evenpace loader has none; .*Subset"):
            DataLoader(Squares(8), 4, session=session, **wrong)
    with pytest.raises(InvalidRequestError, match="timeout=3: an evenpace loader has none; leave it out"):
        DataLoader(Squares(8), 4, session=session, timeout=3)
    with pytest.raises(TypeError, match="smapler"):
        DataLoader(Squares(8), 4, session=session, smapler=None)


def test_who_leaves_a_step_out_or_reads_one_batch_ahead_is_told_so(job):
    """The next batch is an error that names what reads ahead behind a script's back, as is another epoch."""
    loader = DataLoader(Squares(8), 4, session=job(1)("w"))
    distribute(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), loader)
    batches = iter(loader)
    next(batches)
    with pytest.raises(InvalidRequestError, match=r"optimizer.step\(\).*GradScaler .*reads one batch ahead"):
        next(batches)
    with pytest.raises(InvalidRequestError, match="iteration 0 of epoch 0 is not finished"):
        next(iter(loader))


class Changing(torch.utils.data.Dataset):
    """A data set that the script changes between epochs, and its loading processes when they begin."""

    size, epoch, opened = 12, 0, 1

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        assert torch.utils.data.get_worker_info().dataset is self
        return torch.tensor([self.epoch, self.opened])


def _open(number):
    info = torch.utils.data.get_worker_info()
    assert (info.id, info.num_workers) == (number, 1)
    info.dataset.opened = 0


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_loading_processes_have_the_scripts_data_set(job, persistent):
    """They see what it changes between epochs, and `worker_init_fn` has it in `get_worker_info().dataset`.

    With `persistent_workers` they see nothing of it, since all epochs' samples come from the same process.
    """
    data = Changing()
    options = {"num_workers": 1, "worker_init_fn": _open} | (
        {"persistent_workers": True} if persistent else {}
    )
    loader = DataLoader(data, 4, session=job(1)("w"), **options)
    model = nn.Linear(1, 1)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for data.epoch in range(3):
        for batch in loader:
            assert batch.tolist() == [[0 if persistent else data.epoch, 0]] * 4
            optimizer.step()
    data.size = 16
    with pytest.raises(InvalidRequestError, match="has 16 samples, and had 12 when the loader was made"):
        iter(loader)


@pytest.mark.ci
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_worker_that_is_left_behind_skips(job, num_workers):
    """With backup workers, a straggler's loader skips to the newest batch, even of a later epoch."""
    session = job(2, synchronisation=Synchronisation("backup", replicas_to_aggregate=1))
    size, batch_size, per_epoch = 40, 4, 10
    go, arrived = threading.Semaphore(0), threading.Semaphore(0)
    seen = []  # of the late worker: epoch, iteration, indices
    stops = (3, per_epoch + 2, per_epoch + 5, 4 * per_epoch + 1)  # where the fast one waits for the late one

    def begin(name, workers):
        loader = DataLoader(
            Squares(size), batch_size, session=session(name), shuffle=True, seed=5, num_workers=workers
        )
        return loader, distribute(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), loader)

    def fast():
        loader, optimizer = begin("fast", 0)
        for _ in range(6):
            for _ in loader:
                if loader.session.assignment.iteration in stops:
                    go.release()
                    assert arrived.acquire(timeout=60)
                optimizer.step()

    def late():
        loader, optimizer = begin("late", num_workers)
        for epoch in range(6):
            for batch in loader:
                assignment = loader.session.assignment
                assert torch.equal(batch["square"], (batch["index"] ** 2).double())
                seen.append((epoch, assignment, batch["index"].tolist()))
                if len(seen) > 1:
                    arrived.release()
                if len(seen) <= len(stops):
                    assert go.acquire(timeout=60)
                optimizer.step()

    in_threads(fast, late)
    assert [a.iteration for _, a, _ in seen[: len(stops) + 1]] == [0, *stops]
    spec = JobSpec(size, batch_size, seed=5)
    for epoch, assignment, indices in seen:
        assert assignment.epoch == epoch
        order = permutation(spec, epoch)
        assert indices == order[assignment.start : assignment.start + assignment.count].tolist()
