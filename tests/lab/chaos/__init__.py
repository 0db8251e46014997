"""Tests of runs under faults, and of the verdict on them."""
