"""Tests of a job's figures: stragglers, speed-ups, timelines."""
