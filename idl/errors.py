"""The errors of evenpace: one hierarchy, on both sides of the wire.

The errors that `idl/common.thrift` declares as exceptions keep their meaning as they cross it.
"""

CANNOT_GO_ON = "the job cannot go on"
"""How the manager's `InvalidRequestError` begins, for every call of a job that has failed for good."""


class EvenpaceError(Exception):
    """The base of all errors that evenpace raises on purpose."""


class InvalidRequestError(EvenpaceError, ValueError):
    """A mistake of the caller; the same request will fail again."""


class ReleasedError(InvalidRequestError):
    """A part in a job from which this worker was released, or which has ended well: nothing is left to do."""


class NotMemberError(EvenpaceError):
    """A call from a worker that is not, or no longer, a member of the job.

    Args:
        message: The reason, in words.
        ended: Why the worker's run is over, where it has ended well; else None.
    """

    def __init__(self, message: str, ended: str | None = None) -> None:
        super().__init__(message, ended)
        self.ended = ended

    def __str__(self) -> str:
        return str(self.args[0])


class UnavailableError(EvenpaceError):
    """A call that the service cannot serve now, but may serve later."""


class NotYetError(EvenpaceError):
    """A call that waited as long as its caller allowed, without the event that it waits for; repeat it."""


class UnauthorisedError(EvenpaceError):
    """A certificate or token that the other side does not accept, or that is for another job."""


class RewoundError(EvenpaceError):
    """A call from a worker that is not in the same attempt as the shard.

    Args:
        message: The reason, in words.
    """

    def __init__(self, message: str, attempt: int) -> None:
        super().__init__(message, attempt)
        self.attempt = attempt

    def __str__(self) -> str:
        return str(self.args[0])


class ConnectionLostError(EvenpaceError, ConnectionError):
    """A peer that cannot be reached, or a connection that broke before the answer arrived."""


class DeadlineExceededError(EvenpaceError, TimeoutError):
    """An answer that did not arrive in time."""


class ProtocolError(EvenpaceError):
    """Bytes from a peer that are not a valid message."""


class UnusableFrameworkError(EvenpaceError, ImportError):
    """A framework that is not installed, or cannot be used as it is set up."""


class AddressInUseError(EvenpaceError, OSError):
    """An address that another process listens on already."""


# The exceptions of idl/common.thrift, by name.
DECLARED: dict[str, type[EvenpaceError]] = {
    "InvalidRequest": InvalidRequestError,
    "NotMember": NotMemberError,
    "Unavailable": UnavailableError,
    "Rewound": RewoundError,
    "Unauthorised": UnauthorisedError,
    "NotYet": NotYetError,
}
