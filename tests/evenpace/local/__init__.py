"""Tests of a job on one machine."""
