"""Tests on a CUDA device, `pytest -m gpu tests/gpu`; what can also run on the CPU does so without one."""
