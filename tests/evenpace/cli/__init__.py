"""Tests of single commands, and of what they print."""
