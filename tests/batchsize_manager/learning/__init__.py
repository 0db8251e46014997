"""Tests of fits, fitted models and their uploads."""
