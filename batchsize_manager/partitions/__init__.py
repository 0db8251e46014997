"""The DataPartitionManager: the sizes of workers' local parts of the data, and the samples to move."""
