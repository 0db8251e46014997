"""Tests of behaviour and invariants, over real processes and sockets."""
