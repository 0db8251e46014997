"""Findings that were mended, each planted again: tests must find it."""
