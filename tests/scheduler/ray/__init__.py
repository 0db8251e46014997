"""Tests of jobs on Ray clusters."""
