"""A worker with a part of the data and no training: it draws as it is told on stdin, and prints what it drew.

Its samples are its number, their index there, and an array that makes them as large as is asked for.
"""

import argparse
import json
import os
import signal
import sys

import click
import numpy as np

from rpc.address import Address
from worker.partitions.link import PartitionConfig, PartitionLink
from worker.partitions.samples import SampleForm

SAMPLES = 40  # of each worker in the tests


def link(manager, worker, samples, size=1, **options):
    """A worker's partition, which waits until all workers are there; `worker` is a number."""
    config = PartitionConfig(manager, "job", f"w{worker}", start_timeout=240.0, **options)

    def read(index):
        return worker, index, np.full(size, 1000 * worker + index, dtype=np.int64)

    return PartitionLink(config, samples, read, SampleForm(read(0), lambda example, array: array))


def drawn(partition, count, iteration):
    """The next samples, as (worker, index), having seen that they are what they should be."""
    result = []
    for worker, index, array in partition.draw(count, iteration):
        assert (array == 1000 * worker + index).all()
        result.append((worker, index))
    return result


def used(partition, iteration):
    """The samples that it uses: those of a whole traversal, wherever in one it is."""
    return set(drawn(partition, 2 * len(partition), iteration))


def freeze_in(moment):
    """Stop this process in the middle of its second call of `take`: before or after the samples are taken."""
    take, calls = PartitionLink._take, []

    def stopping(self, *arguments):
        calls.append(arguments)
        if moment == "before" and len(calls) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        take(self, *arguments)
        if moment == "after" and len(calls) == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    PartitionLink._take = stopping


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--manager", type=Address.parse)
    parser.add_argument("--worker", type=int)
    parser.add_argument("--samples", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--freeze", choices=("before", "after"))
    options = parser.parse_args()
    if options.freeze:
        freeze_in(options.freeze)
    partition = link(options.manager, options.worker, options.samples, options.size)
    click.echo("ready")
    for line in sys.stdin:
        count, iteration = map(int, line.split())
        samples = drawn(partition, count, iteration) if count else used(partition, iteration)
        click.echo(json.dumps(sorted(samples)))
