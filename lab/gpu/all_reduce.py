"""Training with `torch.distributed` on the device: parameters as one process's, whatever the split.

NCCL takes one process for each GPU; several that share one go by gloo, with tensors on the GPU.
"""

import multiprocessing
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from idl.bounds import Bounds
from lab.gpu import parameter_server as task
from lab.gpu.setup import Setup, need
from worker.torch.memory_watch import within_memory

_LIMITS = (Bounds(), Bounds(maximum=20))  # of the processes


def run(setup: Setup) -> dict[str, Any]:
    """DDP with evenpace's hook, under NCCL and gloo, with plans made ahead."""
    need("thriftpy2", "psutil", "worker.torch.ddp")
    epochs = 1 if setup.quick else 6
    runs = [("nccl", 1, 1), ("gloo", 2, 0), ("gloo", 2, 1)] if setup.on_gpu else [("gloo", 2, 1)]
    result = {}
    for backend, processes, lookahead in runs:
        key = f"{backend}, {processes} processes, lookahead {lookahead}"
        result[key] = _train(backend, processes, lookahead, epochs, setup)
    return result


def _train(backend: str, processes: int, lookahead: int, epochs: int, setup: Setup) -> dict[str, Any]:
    from lab.gpu.services import services

    fork = multiprocessing.get_context("fork")  # before this process touches the GPU or starts a thread
    ends, running = [], []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(processes):
            near, far = fork.Pipe()
            arguments = (far, rank, processes, backend, Path(folder) / "group", epochs, setup)
            running.append(fork.Process(target=_work, args=arguments, daemon=True))
            running[-1].start()
            ends.append(near)
        try:
            with services("proportional", workers=processes, lookahead=lookahead) as (manager, _):
                for end in ends:
                    end.send(manager)
                answers = [end.recv() if end.poll(max(5.0, setup.left)) else "no answer" for end in ends]
        finally:
            for process in running:
                process.join(5)
                process.kill()
    failed = [answer for answer in answers if isinstance(answer, str)]
    if failed:
        raise RuntimeError(f"{backend}: a process did not end well: {failed[0]}")
    differences, sizes = zip(*answers, strict=True)
    assert all(sum(parts) in task.TOTALS for parts in zip(*sizes, strict=True)), sizes
    if max(differences) > task.MOST_DIFFERENCE:
        raise AssertionError(f"{backend}: parameters differ by {max(differences)}")
    return {"difference": max(differences), "last_batch_sizes": [counts[-1] for counts in sizes]}


def _work(
    end: Connection, rank: int, processes: int, backend: str, group: Path, epochs: int, setup: Setup
) -> None:
    try:
        manager = end.recv()
        distributed.init_process_group(
            backend, init_method=f"file://{group}", rank=rank, world_size=processes
        )
        end.send(_train_rank(manager, rank, epochs, setup))
        distributed.barrier()  # gloo's threads let the last tensors go before the interpreter ends
        distributed.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - told to the one who asks
        end.send(f"{type(error).__name__}: {error}")


def _train_rank(manager: Any, rank: int, epochs: int, setup: Setup) -> tuple[float, list[int]]:
    """The largest difference from one process's parameters, and this rank's batch sizes."""
    from worker.session import Session, SessionConfig
    from worker.torch.ddp import balance
    from worker.torch.loader import DataLoader

    session = Session(SessionConfig(manager, worker=f"rank-{rank}", bounds=_LIMITS[rank]))
    try:
        inputs, classes = task.data(setup)
        dataset: Any = list(range(task.SPEC.dataset_size))
        loader = DataLoader(
            dataset, task.SPEC.total_batch_size, session=session, shuffle=True, seed=task.SPEC.seed
        )
        model = balance(DistributedDataParallel(task.make_model(setup)), loader)
        optimizer = task.make_optimizer(model)

        def forward_backward(batch: torch.Tensor) -> None:
            nn.functional.cross_entropy(model(inputs[batch]), classes[batch]).backward()

        step = within_memory(forward_backward, model, loader)
        sizes = []
        for _ in range(epochs):
            for batch in loader:
                optimizer.zero_grad()
                step(batch.to(setup.device))
                optimizer.step()
                sizes.append(len(batch))
        difference = task.flat(model) - task.train_alone(epochs, setup)
        return float(difference.abs().max()), sizes
    finally:
        session.close()
