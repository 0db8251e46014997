"""Benchmarks: each prints and writes its measurements on the machine at hand.

Alternatives are measured in the same run, under the same load: `threaded_manager` and `plain_transfers` are
the services done in the straightforward way, each in a process of its own.
"""
