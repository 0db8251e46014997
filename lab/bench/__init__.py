"""Benchmarks: each prints and writes its measurements on the machine at hand.

Alternatives are measured in the same run, under the same load.
"""
