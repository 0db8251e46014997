"""Workers with a part of the data and no training.

Its samples are its number, their index there, and an array that makes them as large as is asked for.
"""

import numpy as np

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
