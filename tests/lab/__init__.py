"""Tests of the lab: local clusters and what runs on them, on small cases."""
