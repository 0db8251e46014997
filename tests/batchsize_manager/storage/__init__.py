"""Tests of what a manager remembers."""
