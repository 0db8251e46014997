"""Tests of simulated training."""
