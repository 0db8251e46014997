"""Tests of the command line, and of what is beside the services and workers."""
