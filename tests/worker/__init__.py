"""Tests of the worker's package, framework by framework."""
