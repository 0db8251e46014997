"""Network inside this machine for experiments: places on a bridge, each with a bandwidth of its own.

Each place is a network namespace whose only way out is a pair of virtual devices to the bridge. This machine
has such a pair, too, at whose address its services listen. The bridge is in a namespace of its own, where no
rule of this machine's firewall, such as Docker's, keeps places from each other. The kernel's token bucket
filter (tc-tbf) bounds a place's bandwidth both ways. It needs root and iproute2. This module must not know
what runs in the places, and touches no device, namespace or route that it has not made.
"""

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Self

from idl.errors import EvenpaceError
from worker.resources.duty_cycle import start_time

_TOOLS = ("ip", "tc", "nsenter")
_RANGES = ("10.213.0.0/16", "172.30.0.0/16", "192.168.0.0/16")  # private; one free /24 of these is taken
_MOST = 100  # places at most; devices' names have 15 characters
_BURST_SECONDS = 0.01  # burst that may pass at once, as seconds at the full rate
_SMALLEST_BURST = 16_384  # bytes; it must hold a packet
_NAME = re.compile(r"ep([0-9a-f]{6})([0-9a-f]{3})[bn]\d*")


class NetworkError(EvenpaceError):
    """The network cannot be made on this machine; the message says why, and what is needed."""


class WorkerNetwork:
    """Places on one bridge, from `with` to its end (ValueError: the number is out of its range).

    One process has one network at a time. Its devices carry the process in their names, so that the next
    run can tell what one that was killed has left behind, and removes it.
    """

    def __init__(self, places: int) -> None:
        if not 1 <= places <= _MOST:
            raise ValueError(f"places {places}: must be from 1 to {_MOST}")
        self._places = places
        self._tag = _tag(os.getpid(), start_time(os.getpid()) or 0)
        # Address of this machine on the bridge, on which services can be reached from every place.
        self.host = ""
        self._addresses: list[str] = []

    def __enter__(self) -> Self:
        """Make the network (NetworkError: the network cannot be made on this machine)."""
        require_tools()
        with _one_at_a_time():
            _remove_orphans()
            try:
                self._make()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def prefix(self, place: int) -> list[str]:
        """Return the command to put before another one, so that it runs in a place.

        It is not `ip netns exec`, which mounts /sys again and thereby hides the control groups. Gloo is told
        the place's network: it would look for one by the machine's name, which no place resolves.
        """
        inside = ["nsenter", f"--net=/var/run/netns/{self._namespace(place)}", "--"]
        return [*inside, "env", "GLOO_SOCKET_IFNAME=eth0"]

    def address(self, place: int) -> str:
        """Return the address at which this machine and the other places reach a place."""
        return self._addresses[place]

    def limit(self, place: int, mbit: float) -> None:
        """Bound a place's bandwidth, both ways, from now on."""
        if not 0 < mbit < 1e6:
            raise ValueError(f"bandwidth {mbit:g} Mbit/s: must be above 0 and below 1000000")
        burst = max(_SMALLEST_BURST, round(mbit * 1e6 / 8 * _BURST_SECONDS))
        bucket = ("root", "tbf", "rate", f"{round(mbit * 1e6)}bit", "burst", str(burst), "latency", "50ms")
        _run("tc", "-n", self._namespace(place), "qdisc", "replace", "dev", "eth0", *bucket)
        _run("tc", "-n", self._switch, "qdisc", "replace", "dev", f"place{place}", *bucket)

    def close(self) -> None:
        """Remove everything; a second call does nothing. What runs in a place loses its connections."""
        _remove({self._tag})

    def _make(self) -> None:
        host = f"{self._tag}b"
        subnet = _free_subnet()
        addresses = subnet.hosts()
        self.host = str(next(addresses))
        _run("ip", "netns", "add", self._switch)
        _run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        self._plug("host", host)
        _run("ip", "address", "add", f"{self.host}/{subnet.prefixlen}", "dev", host)
        _run("ip", "link", "set", host, "up")
        for place in range(self._places):
            namespace = self._namespace(place)
            _run("ip", "netns", "add", namespace)
            self._plug(f"place{place}", "eth0", "netns", namespace)
            self._addresses.append(str(next(addresses)))
            address = f"{self._addresses[-1]}/{subnet.prefixlen}"
            _run("ip", "-n", namespace, "address", "add", address, "dev", "eth0")
            for inner in ("lo", "eth0"):
                _run("ip", "-n", namespace, "link", "set", inner, "up")
        # A kernel without tbf must be an error now, not in the middle of a training.
        self.limit(0, 1000)
        _run("tc", "-n", self._namespace(0), "qdisc", "delete", "dev", "eth0", "root")
        _run("tc", "-n", self._switch, "qdisc", "delete", "dev", "place0", "root")

    def _plug(self, socket: str, *device: str) -> None:
        """Connect a device, which is made in this namespace unless it says otherwise, to the bridge."""
        pair = ("type", "veth", "peer", "name", socket, "netns", self._switch)
        _run("ip", "link", "add", *device, *pair)
        _run("ip", "-n", self._switch, "link", "set", socket, "master", "bridge", "up")

    def _namespace(self, place: int) -> str:
        return f"{self._tag}n{place}"

    @property
    def _switch(self) -> str:
        return f"{self._tag}n"


def require_tools() -> None:
    """Check that this machine has what a network needs."""
    if os.geteuid() != 0:
        raise NetworkError("network namespaces need root: run this as root")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise NetworkError(
            f"{', '.join(missing)}: not installed; on Debian: apt-get install iproute2 util-linux"
        )


def remove_leftovers() -> None:
    """Remove the networks of processes that were killed before they could."""
    with _one_at_a_time():
        _remove_orphans()


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Keep other processes from taking the subnet that was found free, or removing what is being removed."""
    folder = os.open("/var/run", os.O_RDONLY)  # locked as it is: nothing is left behind
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _remove_orphans() -> None:
    _remove({tag for tag in _existing() if _is_orphan(tag)})


def _tag(pid: int, started: int) -> str:
    return f"ep{pid:06x}{started % 0x1000:03x}"


def _is_orphan(tag: str) -> bool:
    found = _NAME.match(f"{tag}b")
    assert found is not None
    pid, started = int(found[1], 16), start_time(int(found[1], 16))
    return started is None or _tag(pid, started) != tag


def _existing() -> dict[str, list[str]]:
    """Return our devices and namespaces, by tag; their names have "b" or "n" after it."""
    names = [link["ifname"] for link in json.loads(_run("ip", "-json", "link", "show") or "[]")]
    names += [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]
    found: dict[str, list[str]] = {}
    for name in names:
        if _NAME.fullmatch(name):
            found.setdefault(name[: len(_tag(0, 0))], []).append(name)
    return found


def _remove(tags: set[str]) -> None:
    for tag, names in _existing().items():
        for name in names if tag in tags else ():
            # A device of a pair takes the other one with it; a namespace lasts as long as its processes.
            command = ("netns", "delete", name) if name[len(tag)] == "n" else ("link", "delete", name)
            _run("ip", *command)


def _free_subnet() -> ipaddress.IPv4Network:
    """Return a subnet to which no route of this machine leads (NetworkError: there is no such subnet)."""
    routes = json.loads(_run("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    taken = [ipaddress.IPv4Network(route["dst"]) for route in routes if route["dst"] != "default"]
    for wide in _RANGES:
        for subnet in ipaddress.IPv4Network(wide).subnets(new_prefix=24):
            if not any(subnet.overlaps(other) for other in taken):
                return subnet
    raise NetworkError(f"every /24 of {', '.join(_RANGES)} has a route on this machine already")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        raise NetworkError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return done.stdout
