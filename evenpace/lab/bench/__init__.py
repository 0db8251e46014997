"""Benchmarks: each prints and writes what it measured on the machine at hand, whatever that is.

What is compared with what is measured in the same run, against the same load: `threaded_manager` and
`plain_transfers` are the services done the straightforward way, each in a process of its own.
"""
