"""Tests of how batches are split."""
