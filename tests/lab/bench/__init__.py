"""Tests of the benchmarks, on small cases."""
