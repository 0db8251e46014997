"""Tests of parts of the data that workers hold."""
