"""Script that trains a workload, by its name and with its options; experiments' workers run it."""

import argparse
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path

import torch

import evenpace
from idl.plan import Assignment, permutation
from lab.data import DataError
from lab.experiments.flexrr import Board, positions
from lab.workloads import common
from lab.workloads.by_name import WORKLOADS, Training
from lab.workloads.common import Workload
from worker.session import Session

log = logging.getLogger(__name__)


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(add_help=False)  # the workload's own has --help
    parser.add_argument("workload", choices=list(WORKLOADS))
    parser.add_argument("--one-by-one", action="store_true", help="take samples one at a time")
    parser.add_argument("--board", type=Path, help="take samples over from slower workers, on this board")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    own, rest = parser.parse_known_args()
    training = Training(own.workload, tuple(rest))
    options = training.options()
    for path in (options.metrics, options.save):
        if path is not None and not path.parent.is_dir():
            parser.error(f"{path}: no such folder: {path.parent}")  # now, not after hours of training
    torch.set_num_threads(options.threads)
    try:
        workload = training.make(options)
    except DataError as error:
        parser.error(str(error))
    log.info("%s on %s", workload.name, workload.data)
    if not own.one_by_one:
        trained = common.train(workload, options)
        if trained is not None and options.test_samples != 0:
            common.report(workload, trained, options.metrics)
        return
    board = Board(own.board, own.workers) if own.board is not None else None
    _train_one_by_one(workload, options, own.rank, board)


def _train_one_by_one(
    workload: Workload, options: argparse.Namespace, rank: int, board: Board | None
) -> None:
    """Train for `options.iterations` with batches of one sample, whose gradients add up."""
    common.warm_up(workload)
    loader = evenpace.torch.DataLoader(
        workload.train_set, options.batch_size, shuffle=True, seed=options.seed, drop_last=True
    )
    optimizer = evenpace.torch.distribute(workload.optimizer, loader)
    session = loader.session
    for _ in range(options.iterations):
        assignment = session.join()
        session.begin_iteration()
        optimizer.zero_grad()
        count = 0
        for index in _indices(session, assignment, rank, board):
            inputs, targets = workload.collate([workload.train_set[index]])
            workload.loss(workload.model(inputs), targets).backward()
            count += 1
        for parameter in workload.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= count
        if board is not None:
            # With stealing, slices are not contiguous; the server takes a worker's gradient for its slice.
            session.begin_iteration(
                dataclasses.replace(assignment, start=rank * assignment.total, count=count, batch_start=None)
            )
        optimizer.step()


def _indices(session: Session, assignment: Assignment, rank: int, board: Board | None) -> Iterator[int]:
    """Yield the indices of the samples that this worker processes in an iteration."""
    order = permutation(session.training.declared, assignment.epoch)
    own = range(assignment.start, assignment.start + assignment.count)
    taken = own if board is None else positions(board, rank, assignment.iteration, own.start, len(own))
    for position in taken:
        yield int(order[position])


if __name__ == "__main__":
    main()
