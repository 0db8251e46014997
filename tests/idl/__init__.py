"""Tests of the contract's values."""
