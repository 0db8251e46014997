"""The thread that tells the manager that this worker lives.

It knows the wire's heartbeat alone; what follows from the answers is its member's to decide.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import idl
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError
from rpc.client import Client
from rpc.periodic import Periodic

log = logging.getLogger(__name__)

_wire = idl.batchsize_manager

_ANSWER_SECONDS = 10.0
_CONNECT_SECONDS = 1.0
_END_SECONDS = 2.0


class Listener(Protocol):
    """The member that the heartbeats are of; see `worker.membership.Membership`."""

    attempt: int
    paused: bool

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
        seconds: Between heartbeats.
        member: Is told what the answers say.
        log_fields: Gives what lines of log say beside their message.
    """

    def __init__(
        self,
        client: Client,
        identity: Any,
        seconds: float,
        member: Listener,
        log_fields: Callable[[], Mapping[str, object]] = dict,
    ) -> None:
        client.set_connect_timeout(_CONNECT_SECONDS)
        self._client = client
        self._identity = identity
        self._seconds = seconds
        self._member = member
        self._log_fields = log_fields
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evenpace-heartbeat", daemon=True)
        self._thread.start()

    def stop(self, reason: EvenpaceError) -> None:
        """End the thread; a call that is under way ends with `reason`.

        Where that is not soon, as when a name is looked up, the thread is left to end with the process.
        """
        self._stopping.set()
        self._client.abandon(reason)
        self._thread.join(_END_SECONDS)
        self._client.close()

    def _run(self) -> None:
        beating = Periodic("sending a heartbeat")
        while not self._stopping.is_set():
            with beating:
                try:
                    self._beat()
                except (NotMemberError, InvalidRequestError) as error:
                    self._member.fail(error)
                    return
                except EvenpaceError as error:
                    log.debug("heartbeat: %s", error, extra=self._log_fields())
            self._stopping.wait(self._seconds)

    def _beat(self) -> None:
        request = _wire.HeartbeatRequest(identity=self._identity, attempt=self._member.attempt)
        reply = self._client.call("heartbeat", request, timeout=_ANSWER_SECONDS)
        self._member.paused = bool(reply.paused)
        if reply.recover is not None:
            self._member.must_recover(reply.recover)
