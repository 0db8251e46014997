"""Access control of one connection: its token, the job that the token is for, and the rate of its calls.

This module knows of the services only that a request names its job as `identity.job` or `job`; a request that
names none is refused on a connection with a token of one job.
"""

import time
from typing import Any

from idl.errors import InvalidRequestError, ProtocolError, UnauthorisedError, UnavailableError
from rpc.limits import Rate, ServerLimits
from rpc.service import Call
from rpc.tokens import ALL_JOBS, TokenKeys

AUTHENTICATE = "authenticate"


class Guard:
    """Access control of one connection.

    Args:
        keys: Keys that tokens are checked with; None where no tokens are required.
        secure: Whether no TLS handshake has to be completed first.
        now: Seconds, from `time.monotonic`.

    Attributes:
        trusted: Whether the peer has completed the handshake and the authentication that are required.
        frame_bytes: Longest message that is allowed at present, bulk fields left out.
        bulk_bytes: Longest bulk field that is allowed at present.
    """

    def __init__(self, limits: ServerLimits, keys: TokenKeys | None, now: float, *, secure: bool) -> None:
        self._limits = limits
        self._keys = keys
        self._rate = Rate(limits.calls_per_second, now)
        self._left = limits.calls_per_second
        self._calls = 0  # before authentication
        self._secure = secure
        self.job: str | None = None  # the job that the peer has authenticated itself for, or None
        self._update()

    def secured(self) -> None:
        """Note that the TLS handshake is complete."""
        self._secure = True
        self._update()

    def count(self, now: float) -> None:
        """Count a call (ProtocolError: there were far too many; the connection is to be closed)."""
        self._left = self._rate.take(now)
        if self._left < -self._rate.size:
            raise ProtocolError(
                f"more than {self._limits.calls_per_second:g} calls per second, in spite of refusals"
            )
        if not self.trusted:
            self._calls += 1
            if self._calls > self._limits.stranger_calls:
                raise ProtocolError(f"{self._calls} calls without authentication; no more are allowed")

    def permit(self, call: Call) -> None:
        """Check that the call which was counted last is allowed.

        Raises:
            UnavailableError: Calls come faster than allowed.
            UnauthorisedError: The peer has not authenticated itself, or for another job.
        """
        if self._left < 0:
            raise UnavailableError(
                f"more than {self._limits.calls_per_second:g} calls per second on one connection; wait"
            )
        if self._keys is None or call.method == AUTHENTICATE:
            return
        if self.job is None:
            raise UnauthorisedError(
                "this service asks for a job's token: give the worker one with --token-file"
            )
        if self.job == ALL_JOBS:
            return
        named = _jobs(call.request)
        if not named or not all(job == self.job or job.startswith(f"{self.job}/") for job in named):
            jobs = ", ".join(repr(job[:80]) for job in named) or "none"
            raise UnauthorisedError(f"the token of this connection is for job {self.job!r}, not for {jobs}")

    def authenticate(self, request: Any) -> str:
        """Check a token, and return the job that the connection is for from now on.

        Raises:
            InvalidRequestError: The token is missing, or the connection is for another job already.
            UnauthorisedError: The token is not valid.
        """
        job = getattr(request, "job", None)
        token = getattr(request, "token", None)
        if type(job) is not str or type(token) is not str:
            raise InvalidRequestError("authenticate: job or token is missing or not a text")
        if self._keys is not None:
            if self.job is not None and self.job != job:
                raise InvalidRequestError(
                    f"this connection is for job {self.job!r} already; make another for {job!r}"
                )
            self._keys.check(token, job, time.time())
        self.job = job
        self._update()
        return job

    def _update(self) -> None:
        self.trusted = self._secure and (self._keys is None or self.job is not None)
        self.frame_bytes = self._limits.frame_bytes if self.trusted else self._limits.stranger_frame_bytes
        self.bulk_bytes = self._limits.bulk_bytes if self.trusted else 0


def _jobs(request: Any) -> list[str]:
    """Return the jobs that a request names."""
    named = (getattr(getattr(request, "identity", None), "job", None), getattr(request, "job", None))
    return [job for job in named if type(job) is str]
