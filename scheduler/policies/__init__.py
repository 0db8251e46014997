"""Policies that give the devices of a cluster to jobs: one file each, and a table of them all."""
