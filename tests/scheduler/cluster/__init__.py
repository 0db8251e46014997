"""Tests of jobs on a cluster."""
