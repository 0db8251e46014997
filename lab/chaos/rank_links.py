"""Loss of packets between workers that are each in a network namespace of their own, by nftables.

Workers connect to each other at ports that nobody knows before, so that there can be no proxy between them.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from lab.chaos.errors import NotPossibleHereError

_TABLE = "evenpace"
_RULES = f"""
table ip {_TABLE} {{
    set unheard {{ type ipv4_addr; }}
    counter lost {{ }}
    chain input {{ type filter hook input priority 0; ip saddr @unheard counter name lost drop; }}
}}
"""
_LOOK_SECONDS = 0.5  # seconds between two looks at the packets lost


class Ear:
    """The packets that come to one worker, some of which are dropped."""

    def __init__(self, address: str, prefix: Sequence[str]) -> None:
        self.address = address  # the worker's address
        self._prefix = prefix
        if shutil.which("nft") is None:
            raise NotPossibleHereError("nft: not installed; on Debian: apt-get install nftables")
        try:
            self._nft("--file", "-", given=_RULES)
        except subprocess.CalledProcessError as error:
            raise NotPossibleHereError(f"packets cannot be dropped: {error.stderr.strip()}") from error

    @property
    def lost(self) -> int:
        """Return the number of packets that were dropped so far."""
        found = json.loads(self._nft("--json", "list", "counter", "ip", _TABLE, "lost"))["nftables"]
        packets: int = next(one["counter"]["packets"] for one in found if "counter" in one)
        return packets

    def drop(self, others: Sequence["Ear"], *, drop: bool = True) -> None:
        """Drop, or drop no more, the packets that come from others."""
        addresses = ", ".join(other.address for other in others)
        self._nft("add" if drop else "delete", "element", "ip", _TABLE, "unheard", f"{{ {addresses} }}")

    def _nft(self, *arguments: str, given: str | None = None) -> str:
        command = [*self._prefix, "nft", *arguments]
        return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


class Apart:
    """Loss of all packets between some workers and some others, both ways; nothing is closed."""

    def __init__(self, one: Mapping[str, Ear], other: Mapping[str, Ear]) -> None:
        self._sides = (one, other), (other, one)
        self._before = self._lost()
        self._looked = 0.0
        self._set(drop=True)

    @property
    def is_moot(self) -> bool:
        """Return whether no packet was lost."""
        return self._lost() == self._before

    def fired(self) -> str | None:
        """Return the number of packets lost, in words."""
        if time.monotonic() < self._looked + _LOOK_SECONDS:
            return None
        self._looked = time.monotonic()
        lost = self._lost() - self._before
        return f"{lost} packets lost" if lost else None

    def lift(self) -> None:
        """Let packets pass again."""
        self._set(drop=False)

    def _lost(self) -> int:
        return sum(ear.lost for side, _ in self._sides for ear in side.values())

    def _set(self, *, drop: bool) -> None:
        for here, there in self._sides:
            for ear in here.values():
                ear.drop(list(there.values()), drop=drop)
