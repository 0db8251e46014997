"""The thread that sends this worker's heartbeats to the manager.

This module knows the wire's heartbeat alone; the member decides what follows from the answers.
"""

import threading
import time
from typing import Any, Protocol

import idl
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError
from rpc.client import Client
from rpc.field_log import FieldLog
from rpc.periodic import Periodic

log = FieldLog(__name__)

_wire = idl.batchsize_manager

_ANSWER_SECONDS = 10.0
_HELD_SECONDS = 2.0  # for which an answer is held back at most
_CONNECT_SECONDS = 1.0
_END_SECONDS = 2.0


class HeartbeatMember(Protocol):
    """The member whose heartbeats are sent; see `worker.membership.Membership`."""

    attempt: int
    is_between: bool
    paused_at: float
    noise_scale: float | None

    def must_recover(self, attempt: int) -> None:
        """Handle that the manager wants the job to recover into an attempt."""
        ...

    def join_again(self, client: Client, error: NotMemberError) -> None:
        """Become a member again after this error, or raise it."""
        ...

    def fail(self, error: EvenpaceError) -> None:
        """Handle an error after which the member cannot go on."""
        ...


class Heartbeat:
    """A thread that sends heartbeats until it is stopped.

    Args:
        client: A client of the manager, for this thread alone.
        identity: This worker's `Identity` of common.thrift.
        seconds: Seconds between heartbeats; for so long the manager holds an answer back that has no news.
        member: Handles the answers.
        log: A logger whose fields all log lines get.
    """

    def __init__(
        self,
        client: Client,
        identity: Any,
        seconds: float,
        member: HeartbeatMember,
        log: FieldLog = log,
    ) -> None:
        client.set_connect_timeout(_CONNECT_SECONDS)
        self._client = client
        self._identity = identity
        self._seconds = seconds
        self._member = member
        self._log = log.of(__name__)
        self._known: int | None = None  # the last attempt that it was told to recover with
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenpace-heartbeat", daemon=True)
        self._thread.start()

    def stop(self, reason: EvenpaceError) -> None:
        """End the thread; a call in progress fails with `reason`.

        If it does not end within 2 s, as while a host name is resolved, it is left to end with the process.
        """
        self._stopping.set()
        self._client.abandon(reason)
        self._thread.join(_END_SECONDS)
        self._client.close()

    def _run(self) -> None:
        heartbeats = Periodic("sending a heartbeat")
        while not self._stopping.is_set():
            begun, has_news = time.monotonic(), False
            with heartbeats:
                try:
                    has_news = self._beat()
                except (NotMemberError, InvalidRequestError) as error:
                    self._member.fail(error)
                    return
                except EvenpaceError as error:
                    self._log.debug("heartbeat: %s", error)
            if not has_news:
                self._stopping.wait(max(0.0, begun + self._seconds - time.monotonic()))

    def _beat(self) -> bool:
        """Send a heartbeat; return whether the answer told of another attempt."""
        hold = min(self._seconds, _HELD_SECONDS)
        request = _wire.HeartbeatRequest(
            identity=self._identity,
            attempt=self._member.attempt,
            hold=hold,
            known=self._known,
            between=self._member.is_between or None,
        )
        try:
            reply = self._client.call("heartbeat", request, timeout=_ANSWER_SECONDS + hold)
        except NotMemberError as error:
            self._member.join_again(self._client, error)
            return False  # the next heartbeat is answered
        if reply.paused:
            self._member.paused_at = time.monotonic()
        self._member.noise_scale = reply.noise_scale
        if reply.recover is None:
            return False
        self._member.must_recover(reply.recover)
        has_news = reply.recover != self._known
        self._known = reply.recover
        return bool(has_news)
