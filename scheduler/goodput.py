"""Goodput: throughput by a model of step times, times statistical efficiency by the gradient noise (Pollux, 3)."""


class Goodput:
    """What a job's training gains on devices of one kind."""
