"""Rights of viewers to change jobs from the page, with the reasons of refusals.

If the manager asks for tokens, it decides: it is given the viewer's own token, never the page's. If it asks
for none, all who reach the manager may change its jobs; the page must not let more people do so.
"""

import ipaddress
from dataclasses import dataclass

import idl
from evenpace.dashboard.config import ManagerPageConfig
from idl.errors import InvalidRequestError, NotMemberError, UnauthorisedError
from rpc.client import Client
from rpc.credentials import Credentials

_wire = idl.batchsize_manager
_NOBODY = "evenpace-page"  # a name that no job has: only the right to ask is of interest
_CONNECT_SECONDS = 3.0
# For the manager to answer: longer than until viewers see that it does not, who ask again once it does.
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Rights:
    """The rights of a viewer."""

    change: str  # "token": changes need a token; "open": changes need nothing; "none": no changes
    reason: str  # the reason, in words for the viewer


def asks_for_tokens(config: ManagerPageConfig) -> bool:
    """Return whether the manager asks for tokens at present.

    Raises:
        EvenpaceError: The manager cannot be reached.
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
        if not client.is_connected:  # TLS has refused the connection
            raise
        return True
    finally:
        client.close()
    return False


def rights(config: ManagerPageConfig, tokens: bool, client: str, forwarded: bool) -> Rights:
    """Return the rights of a viewer.

    Args:
        config: The page's configuration.
        tokens: Whether the manager asks for tokens.
        client: The viewer's address.
        forwarded: Whether a proxy passed the request on, so that the viewer may be anybody.
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
