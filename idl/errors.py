"""The errors of evenpace: one hierarchy, on both sides of the wire.

The errors that `idl/common.thrift` declares as exceptions keep their meaning as they cross it.
"""


class EvenpaceError(Exception):
    """Anything that evenpace raises on purpose."""


class InvalidRequestError(EvenpaceError, ValueError):
    """The caller did something wrong; the same request again will fail again."""


class NotMemberError(EvenpaceError):
    """The caller is not, or no longer, a member of the job."""


class UnavailableError(EvenpaceError):
    """The service cannot serve this now; later it may."""


class NotYetError(EvenpaceError):
    """What a call waits for has not come within the time that the caller gave."""


class UnauthorisedError(EvenpaceError):
    """One side does not trust the other: its certificate, its token, or the job that it is for."""


class RewoundError(EvenpaceError):
    """A shard and the caller are not in the same attempt.

    Args:
        message: In words.
        attempt: That the shard is in.
    """

    def __init__(self, message: str, attempt: int) -> None:
        super().__init__(message, attempt)
        self.attempt = attempt

    def __str__(self) -> str:
        return str(self.args[0])


class ConnectionLostError(EvenpaceError, ConnectionError):
    """The peer could not be reached, or the connection broke before the answer came."""


class DeadlineExceededError(EvenpaceError, TimeoutError):
    """The answer did not come in time."""


class ProtocolError(EvenpaceError):
    """The peer sent something that is not a message of ours."""


class AddressInUseError(EvenpaceError, OSError):
    """Another process listens on the address already."""


# The exceptions of idl/common.thrift, by name.
DECLARED: dict[str, type[EvenpaceError]] = {
    "InvalidRequest": InvalidRequestError,
    "NotMember": NotMemberError,
    "Unavailable": UnavailableError,
    "Rewound": RewoundError,
    "Unauthorised": UnauthorisedError,
    "NotYet": NotYetError,
}
