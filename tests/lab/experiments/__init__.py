"""Tests of the experiments and of the paper's figures, on small cases."""
