"""Tests of the job as a state machine."""
