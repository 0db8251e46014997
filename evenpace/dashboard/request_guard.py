"""Checks of every request and headers of every answer (ASGI middleware).

A foreign site can have its own name resolve to this machine (DNS rebinding), and then read the page's
answers; but it cannot change the `Host` and `Origin` that the browser sends.
"""

import socket
from collections.abc import Iterable
from typing import Any

import psutil
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rpc.address import Address

OWN_HEADER = "x-evenpace"  # forms and simple requests of other sites cannot have it
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_MAX_BODY = 4096  # bytes; the longest change is a few hundred
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class RequestGuard:
    """Middleware that refuses requests of foreign sites or names, and adds security headers to answers.

    Args:
        app: The application behind it.
        names: The page's own names; see `own_names`.
        scheme: The scheme of the page's address.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str], scheme: str) -> None:
        self._app = app
        self._names = names
        self._scheme = scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        app: Any = self._app if refusal is None else refusal
        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._names:
            return refusal(421, "this page has another name; --http-name adds one that it may be called by")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{self._scheme}://{hosts[0].lower()}":
            return refusal(403, "requests of other sites are not answered")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and (
            scope["method"] != "GET" or scope["path"].startswith("/api/")
        ):
            return refusal(403, "requests of other sites are not answered")
        if scope["method"] in ("GET", "HEAD"):
            return None
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return refusal(415, "a change is JSON: content-type application/json")
        if OWN_HEADER not in headers:
            return refusal(403, "a change must have the header X-Evenpace")
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return refusal(411, "a change must say its content-length")
        if int(length) > _MAX_BODY:
            return refusal(413, f"a change of {length} bytes: at most {_MAX_BODY} are allowed")
        return None


def refusal(status: int, error: str) -> JSONResponse:
    """Return an answer that tells of an error."""
    return JSONResponse({"error": error}, status)


def own_names(address: Address, more: Iterable[str]) -> frozenset[str]:
    """Return the names and addresses of a page that listens at an address, in lower case, without ports."""
    names = {address.host, *more}
    if address.is_loopback:
        names |= set(_LOOPBACK)
    if address.host in ("0.0.0.0", "::"):
        names |= {*_LOOPBACK, socket.gethostname(), socket.getfqdn()}
        for entries in psutil.net_if_addrs().values():
            names |= {entry.address.partition("%")[0] for entry in entries if entry.family in _INTERNET}
    return frozenset(name.lower().rstrip(".") for name in names)


def host_name(header: str) -> str:
    """Return the name in a `Host` header, in lower case, without the port; empty if it is invalid."""
    if header.startswith("["):
        name, bracket, port = header[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return ""
        port = port.removeprefix(":")
    else:
        name, _, port = header.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return ""
    return name.lower().rstrip(".")
