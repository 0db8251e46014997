"""A worker's script that trains a small least-squares problem until a file is there."""

import argparse
import time
from pathlib import Path

import numpy as np

import evenpace
from idl.layout import Group, Layout
from tests.scripts.train_least_squares import FEATURES, SPEC, mean_gradient
from worker.data.slices import Slices

RATE = 1e-6  # so small that the gradient noise stays what it is at the beginning
PACE = 0.01  # seconds that an iteration takes at least, so that the machine has time for others


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--until", type=Path, required=True)
    options = parser.parse_args()
    session = evenpace.session()
    slices = Slices(SPEC.dataset_size, SPEC.total_batch_size, session, shuffle=SPEC.shuffle, seed=SPEC.seed)
    session.exchange.prepare(Layout("float64", "sgd", (Group(FEATURES, {"lr": RATE}),)), np.zeros(FEATURES))
    session.start_training()
    while not options.until.exists():
        for part in slices:
            with session.meter.tally.phase("load", part.assignment):
                indices = part.indices.copy()
            session.exchange.gradient.values[:] = mean_gradient(session.exchange.parameters, indices)
            time.sleep(PACE)
            session.finish_iteration()
            if options.until.exists():
                break


if __name__ == "__main__":
    main()
