"""The thread that tells the manager that this worker lives, and looks for a manager that is away.

It knows the wire's heartbeat alone; what follows from the answers is its member's to decide.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import idl
from rpc.client import Client
from rpc.errors import EvenpaceError, InvalidRequestError, NotMemberError

log = logging.getLogger(__name__)

_wire = idl.batchsize_manager

_ANSWER_SECONDS = 10.0  # a manager that is frozen is as good as away
_CONNECT_SECONDS = 1.0
_SEARCH_SECONDS = 1.0  # between two looks for a manager that is away


class Member(Protocol):
    """Whose heart it is; see `worker.membership.Membership`."""

    attempt: int
    paused: bool

    @property
    def is_away(self) -> bool:
        """Whether it carries on without the manager."""
        ...

    def must_recover(self, attempt: int) -> None:
        """The manager wants the job to be brought into another attempt."""
        ...

    def fail(self, error: EvenpaceError) -> None:
        """It cannot go on."""
        ...


class Heartbeat:
    """Sends heartbeats until it is stopped.

    Args:
        client: Of the manager, for this thread alone.
        identity: This worker's, as the wire has it.
        seconds: Between heartbeats; None to send them only while the manager is away, to find it.
        member: Is told what the answers say.
        log_fields: Gives what lines of log say beside their message.
    """

    def __init__(
        self,
        client: Client,
        identity: Any,
        seconds: float | None,
        member: Member,
        log_fields: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        client.wait_to_connect(_CONNECT_SECONDS)
        self._client = client
        self._identity = identity
        self._seconds = seconds
        self._member = member
        self._log_fields = log_fields
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenpace-heartbeat", daemon=True)
        self._thread.start()

    def stop(self, reason: EvenpaceError) -> None:
        """End the thread; a call that is under way ends with `reason`."""
        self._stopping.set()
        self._client.abandon(reason)
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        # The first at once: who has never sent one is not missed when it is silent.
        while not self._stopping.is_set():
            if self._seconds is not None or self._member.is_away:
                try:
                    self._beat()
                except (NotMemberError, InvalidRequestError) as error:
                    if self._member.is_away:
                        self._member.fail(error)
                    return  # otherwise its next report is told so, too
                except EvenpaceError as error:
                    log.debug("heartbeat: %s", error, extra=self._log_fields())
            away = self._seconds is None or self._member.is_away
            self._stopping.wait(_SEARCH_SECONDS if away else self._seconds)

    def _beat(self) -> None:
        was_away = self._member.is_away
        request = _wire.HeartbeatRequest(identity=self._identity, attempt=self._member.attempt)
        reply = self._client.call("heartbeat", request, timeout=_ANSWER_SECONDS)
        self._member.paused = bool(reply.paused)
        attempt = reply.recover
        if attempt is None and was_away and self._member.is_away:
            # It knows this attempt, but not what this worker has done by itself.
            again = _wire.RecoverRequest(identity=self._identity, attempt=self._member.attempt)
            attempt = self._client.call("recover", again, timeout=_ANSWER_SECONDS).attempt
        if attempt is not None:
            self._member.must_recover(attempt)
