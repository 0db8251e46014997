"""Tests of `evenpace planted`, which tests the tests."""
