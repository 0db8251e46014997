"""Tests of how large batches are."""
