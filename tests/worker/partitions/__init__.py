"""Tests of partitions of the data that workers hold."""
