"""Tests of what is told of a job: stragglers, speed-ups, timelines."""
