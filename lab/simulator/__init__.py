"""Simulated training on a cluster, from measured step times and measured gradient noise, under any policy."""
