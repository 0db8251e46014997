"""Tests of the wire: framing, limits, TLS and tokens."""
