"""Errors of the chaos harness itself."""

from idl.errors import EvenpaceError


class NotPossibleHereError(EvenpaceError):
    """A kind of fault cannot be caused on this machine; the message says why."""


class ChaosError(EvenpaceError):
    """The run cannot be judged: the cluster did not start, or did not end."""
