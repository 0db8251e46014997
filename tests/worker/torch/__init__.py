"""Tests of PyTorch's adapter."""
