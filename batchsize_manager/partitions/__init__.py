"""The DataPartitionManager: which worker has which part of the data."""
