"""Who may change jobs from the page, and why others may not.

The manager decides wherever it asks for tokens: a viewer's own is shown to it, never the page's. Where it
asks for none, whoever reaches it may change its jobs; the page must not widen the circle of those who do.
"""

import ipaddress
from dataclasses import dataclass

import idl
from evenpace.dashboard.config import PageConfig
from idl.errors import InvalidRequestError, NotMemberError, UnauthorisedError
from rpc.client import Client
from rpc.credentials import Credentials

_wire = idl.batchsize_manager
_NOBODY = "evenpace-page"  # no job that anybody would have: what is asked is whether one may ask
_CONNECT_SECONDS = 3.0
# For the manager to answer: longer than until viewers are told that it does not, who ask again once it does.
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Rights:
    """What a viewer may do.

    Attributes:
        change: "token": with a token; "open": anyhow; "none": nothing.
        reason: In words for the viewer.
    """

    change: str
    reason: str


def asks_for_tokens(config: PageConfig) -> bool:
    """Whether the manager does, as it is now.

    Raises:
        EvenpaceError: It cannot be asked.
    """
    own = config.credentials
    client = Client(
        _wire.BatchSizeManager,
        config.manager,
        "BatchSizeManager",
        connect_timeout=_CONNECT_SECONDS,
        call_timeout=_ANSWER_SECONDS,
        credentials=Credentials(own.ca, own.certificate, own.key),
    )
    try:
        client.call("jobs", _wire.JobsRequest(job=_NOBODY))
    except (InvalidRequestError, NotMemberError):
        return False
    except UnauthorisedError:
        if not client.connected:  # it was TLS that said so
            raise
        return True
    finally:
        client.close()
    return False


def rights(config: PageConfig, tokens: bool, client: str, forwarded: bool) -> Rights:
    """What a viewer may do.

    Args:
        config: The page's.
        tokens: Whether the manager asks for them.
        client: The viewer's address.
        forwarded: Whether somebody passed the request on, so that the viewer may be anybody.
    """
    if tokens:
        return Rights("token", "Changes need a token of the job, or of all jobs; the manager checks it.")
    reason = "Read-only: the manager asks for no tokens, so changes are only taken "
    if not config.http.is_loopback:
        return Rights(
            "none", f"{reason}where the page listens on loopback alone; this one is on {config.http}."
        )
    if forwarded or not _is_loopback(client):
        return Rights("none", f"{reason}from this machine itself.")
    return Rights("open", "The manager asks for no tokens: whoever uses this machine may change its jobs.")


def _is_loopback(client: str) -> bool:
    try:
        address = ipaddress.ip_address(client.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
