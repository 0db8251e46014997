"""Uneven workers on a device end with the parameters of one process that takes the whole batches."""

import contextlib
import functools
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta

import pytest
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from idl.bounds import Bounds
from tests.gpu import problem
from tests.services import in_threads
from tests.worker.least_squares import services
from tests.worker.torch.process_groups import end_process_group
from worker.session import Session, SessionConfig
from worker.torch.ddp import balance
from worker.torch.memory_watch import watch_memory, within_memory
from worker.torch.optimizer import distribute

BOUNDS = (Bounds(), Bounds(maximum=20), Bounds(maximum=7))  # of the workers
EPOCHS = 6
PATIENCE = timedelta(seconds=120)  # until a rank gives up one that does not come


@pytest.mark.parametrize(
    ("policy", "lookahead"),
    [("proportional", 0), ("proportional", 3), ("leader_straggler", 0), ("leader_straggler", 2)],
)
def test_workers_of_a_parameter_server(device, policy, lookahead):
    """Three threads, blocking and with plans ahead."""
    trained = {}
    models = [problem.make_model(device) for _ in BOUNDS]  # in turn: they share the random numbers
    with (
        services(len(BOUNDS), policy, lookahead=lookahead) as (manager, shards),
        contextlib.ExitStack() as sessions,  # one that leaves early leaves a batch too large for the others
    ):

        def train(number):
            session = Session(
                SessionConfig(manager, tuple(shards), worker=f"w{number}", bounds=BOUNDS[number])
            )
            sessions.callback(session.close)
            watch_memory(session, device)
            model, loader = models[number], problem.make_loader(session)
            optimizer = distribute(problem.make_optimizer(model), loader)
            batches = itertools.chain.from_iterable(itertools.repeat(loader, EPOCHS))
            sizes = problem.train(batches, optimizer, problem.passes(model, device), device)
            trained[number] = problem.flat(model), sizes

        in_threads(*(functools.partial(train, number) for number in range(len(BOUNDS))))
    problem.check_equal(trained.values(), EPOCHS, device)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_ranks_under_gloo(device, tmp_path, lookahead):
    """Two processes, which share a GPU."""
    check_ranks("gloo", 2, lookahead, device, tmp_path)


@pytest.mark.gpu
def test_a_rank_under_nccl(gpu, tmp_path):
    """One process: NCCL takes one for each GPU."""
    check_ranks("nccl", 1, 0, gpu, tmp_path)


def check_ranks(backend, count, lookahead, device, folder):
    """Train in DDP, a process for each rank."""
    spawn = multiprocessing.get_context("spawn")  # a CUDA context does not survive a fork
    with (
        services(count, "proportional", lookahead=lookahead) as (manager, _),
        ProcessPoolExecutor(count, mp_context=spawn) as processes,
    ):
        group = f"file://{folder / 'group'}"
        trained = list(
            processes.map(
                functools.partial(train_rank, backend, count, group, manager, str(device)), range(count)
            )
        )
    problem.check_equal([(parameters.to(device), sizes) for parameters, sizes in trained], EPOCHS, device)


def train_rank(backend, count, group, manager, device, rank):
    """Train as a rank, and return its parameters on the CPU, and its batch sizes."""
    distributed.init_process_group(backend, group, PATIENCE, rank=rank, world_size=count)
    trained = _train_rank(manager, device, rank)
    end_process_group()
    return trained


def _train_rank(manager, device, rank):
    config = SessionConfig(manager, worker=f"rank-{rank}", bounds=BOUNDS[rank])
    with contextlib.closing(Session(config)) as session:
        loader = problem.make_loader(session)
        model = balance(DistributedDataParallel(problem.make_model(device)), loader)
        step = within_memory(problem.passes(model, device), model, loader)
        batches = itertools.chain.from_iterable(itertools.repeat(loader, EPOCHS))
        sizes = problem.train(batches, problem.make_optimizer(model), step, device)
        return problem.flat(model).cpu(), sizes
