"""Checks of this machine's own network: loopback, its name, its interfaces, and the services' ports."""

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from evenpace.doctor.findings import Finding, Subject, note, ok, problem, warning

_ETHERNET = 1500  # bytes


def loopback(subject: Subject) -> Iterator[Finding]:
    """Check whether processes of this machine can call each other, by IPv4 and by IPv6."""
    reached = {}
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        reached[host] = _calls_itself(family, host, subject.timeout)
    if reached["127.0.0.1"]:
        yield problem(
            "loopback", f"127.0.0.1 does not work: {reached['127.0.0.1']}", "bring it up: `ip link set lo up`"
        )
    elif reached["::1"]:
        yield ok("loopback", f"127.0.0.1 works; IPv6 does not ({reached['::1']})")
    else:
        yield ok("loopback", "127.0.0.1 and ::1 work")
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM)}
    except OSError as error:
        yield warning("loopback", f"localhost does not resolve: {error}", "see /etc/hosts")
        return
    if "::1" in found and reached["::1"]:
        yield warning(
            "loopback",
            "localhost is ::1, too, where IPv6 does not work",
            "call services by 127.0.0.1, or take ::1 out of /etc/hosts",
        )


def own_name(subject: Subject) -> Iterator[Finding]:
    """Check the addresses of this machine's own name, which torch.distributed's gloo gives to others."""
    name = socket.gethostname()
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        yield warning(
            "own name",
            f"{name!r} does not resolve on this machine",
            "add it to /etc/hosts, or set GLOO_SOCKET_IFNAME for torch.distributed",
        )
        return
    found = sorted({str(entry[4][0]) for entry in entries})
    if all(ipaddress.ip_address(host.partition("%")[0]).is_loopback for host in found):
        yield note(
            "own name",
            f"{name!r} is {', '.join(found)}, which others cannot reach",
            "with torch.distributed over several machines, set GLOO_SOCKET_IFNAME; else all is well",
        )
    else:
        yield ok("own name", f"{name!r} is {', '.join(found)}")


def interfaces(subject: Subject) -> Iterator[Finding]:
    """List the interfaces that are up, with the size of their packets."""
    up = {name: found for name, found in psutil.net_if_stats().items() if found.isup and name != "lo"}
    if not up:
        yield note("interfaces", "none but loopback is up: other machines cannot be reached")
        return
    summary = ", ".join(f"{name} (MTU {found.mtu})" for name, found in sorted(up.items()))
    small = [name for name, found in up.items() if 0 < found.mtu < _ETHERNET]
    if small:
        yield note(
            "interfaces",
            summary,
            f"{', '.join(sorted(small))}: tunnels and overlays have small packets; where calls hang that are "
            f"long, the other side's MTU differs",
        )
    else:
        yield ok("interfaces", summary)


def ports(subject: Subject) -> Iterator[Finding]:
    """Check whether the services' default ports are free, and name the owner of one that is not."""
    for port in subject.ports:
        if _is_free(port):
            yield ok("ports", f"{port} is free")
            continue
        owner, ours = _owner(port)
        if ours:
            yield ok("ports", f"{port} is taken by evenpace: {owner}")
        else:
            yield warning(
                "ports",
                f"{port} is taken by {owner or 'a process that this user may not see'}",
                "end it, or have the service listen elsewhere: --listen HOST:PORT",
            )


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just closed is free
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _owner(port: int) -> tuple[str | None, bool]:
    """Return a description of the process that listens on a port, and whether it is evenpace's."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.pid is not None
            if listens and connection.laddr and connection.laddr.port == port:
                command = psutil.Process(connection.pid).cmdline()
                ours = any(Path(word).name == "evenpace" for word in command[:3])  # or python -m evenpace
                return f"process {connection.pid}, {' '.join(command)[:100]}", ours
    return None, False


def _calls_itself(family: socket.AddressFamily, host: str, timeout: float) -> str:
    """Return why this machine cannot call itself at an address; empty if it can."""
    try:
        with contextlib.closing(socket.socket(family)) as listener:
            listener.bind((host, 0))
            listener.listen(1)
            socket.create_connection(listener.getsockname()[:2], timeout=timeout).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
