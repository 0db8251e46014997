"""Tests of scheduling policies."""
