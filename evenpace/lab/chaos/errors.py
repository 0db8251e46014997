"""What may go wrong with the harness itself."""

from idl.errors import EvenpaceError


class NotPossibleHereError(EvenpaceError):
    """A kind of fault cannot be brought about on this machine; the message says why."""


class ChaosError(EvenpaceError):
    """The run cannot be judged: the cluster did not come up, or did not come to its end."""
