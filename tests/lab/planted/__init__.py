"""Tests of `evenpace lab planted`, which tests the tests."""
