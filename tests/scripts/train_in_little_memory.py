"""A worker's script without a framework that ends for want of memory where a batch is too large."""

import argparse

import evenpace
from tests.scripts.train_least_squares import go_through


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--fitting", type=int, required=True, help="Most samples that fit.")
    options = parser.parse_args()

    def allocate(session):
        if session.assignment.count > options.fitting:
            raise MemoryError

    for _ in go_through(evenpace.session(), options.iterations, at=allocate):
        pass


if __name__ == "__main__":
    main()
