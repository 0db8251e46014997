"""Tests of JAX's adapter."""
