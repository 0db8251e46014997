"""Tests of slices, streams and batches."""
