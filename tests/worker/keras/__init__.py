"""Tests of Keras's adapter."""
