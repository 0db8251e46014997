"""Tests of `evenpace simulate`."""
