"""Tests of `evenpace lab simulate`."""
