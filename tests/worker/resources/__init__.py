"""Tests of a worker's resources."""
