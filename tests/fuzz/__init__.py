"""Harnesses for coverage-guided fuzzing with atheris: `python -m tests.fuzz.NAME -runs=N`."""
