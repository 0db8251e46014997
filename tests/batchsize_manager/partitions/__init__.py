"""Tests of the DataPartitionManager."""
