"""Tests of what a worker runs on."""
