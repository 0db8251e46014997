"""A worker's script: a small least-squares problem without a framework, quick to start."""

import argparse
import time
from pathlib import Path

import numpy as np

import evenpace
from idl.layout import Group, Layout
from idl.plan import JobSpec, permutation
from worker.data.slices import Slices

SPEC = JobSpec(dataset_size=200, total_batch_size=16, seed=3)
FEATURES, RATE = 4, 0.05
INPUTS = np.random.default_rng(0).normal(size=(SPEC.dataset_size, FEATURES))
TARGETS = INPUTS @ np.arange(1.0, FEATURES + 1)


def mean_gradient(parameters, indices):
    """(features,): that of the squared error, over the samples at `indices`."""
    return (INPUTS[indices] @ parameters - TARGETS[indices]) @ INPUTS[indices] / len(indices)


def trained_alone(iterations):
    """The parameters after so many whole batches."""
    *_, last = versions_of([SPEC.batch(iteration) for iteration in range(iterations)])
    return last


def versions_of(batches):
    """The parameters before, between and after whole batches, each with its epoch, start and total."""
    parameters = np.zeros(FEATURES)
    yield parameters
    for epoch, start, total in batches:
        order = permutation(SPEC, epoch)
        parameters = parameters - RATE * mean_gradient(parameters, order[start : start + total])
        yield parameters


def go_through(session, iterations, at=lambda session: None):
    """Train for so many iterations, and give each slice once it is done.

    Args:
        session: With the services.
        iterations: How many.
        at: Called with the session before each slice is finished.
    """
    slices = Slices(SPEC.dataset_size, SPEC.total_batch_size, session, shuffle=SPEC.shuffle, seed=SPEC.seed)
    layout = Layout("float64", "sgd", (Group(FEATURES, {"lr": RATE}),))
    session.exchange.prepare(layout, np.zeros(FEATURES))
    session.start_training()
    for _ in range(1 + iterations // SPEC.iterations_per_epoch):
        for part in slices:
            if part.assignment.iteration >= iterations:
                return
            session.exchange.gradient.values[:] = mean_gradient(session.exchange.parameters, part.indices)
            at(session)
            session.finish_iteration()
            yield part


def main(arguments=None):
    """Train, as a command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--pace", type=float, default=0.0, help="Seconds that an iteration takes at least.")
    parser.add_argument("--go", type=Path, help="File from whose existence on there is no pace.")
    parser.add_argument("--computed", type=Path, help="Append iteration, start and count of each slice.")
    parser.add_argument("--fitting", type=int, help="Most samples of a slice; more are out of memory.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)

    def computed(session):
        """Note what has been computed, and keep the pace."""
        part = session.assignment
        if options.fitting is not None and part.count > options.fitting:
            raise MemoryError
        if options.computed is not None:
            with options.computed.open("a") as stream:
                stream.write(f"{part.iteration} {part.start} {part.count}\n")
        if options.go is None or not options.go.exists():
            time.sleep(options.pace)

    session = evenpace.session()
    for _ in go_through(session, options.iterations, at=computed):
        pass
    np.save(options.out, session.exchange.parameters)


if __name__ == "__main__":
    main()
