"""Tests of what runs in a training loop, framework by framework."""
