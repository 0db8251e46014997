"""Tokens for the honest job and for its attackers, and what an attacker can make of those that it has."""

import time
from pathlib import Path
from typing import Any

import idl
from evenpace.lab.attacks.honest_job import JOB
from evenpace.lab.attacks.long_answers import frame
from rpc.tokens import TokenKeys, issue, write_new_key


class Tokens:
    """In a folder that only this attack uses.

    Args:
        folder: Where files go.

    Attributes:
        key: The services' file of keys.
        honest: The honest job's file with its token.
    """

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"
        self.honest = folder / "honest"
        write_new_key(self.key, add=False)
        self._keys = TokenKeys(self.key)
        self.honest.write_text(issue(self._keys, JOB, 0))

    def hello(self, definition: type, job: str) -> bytes:
        """The call that authenticates a connection for a job."""
        return _authenticate(definition, job, issue(self._keys, job, 0))

    def impostures(self, definition: type, job: str, victim: str) -> list[bytes]:
        """Calls that must not: with another job's token, an old one, one that was tampered with, and none."""
        own, old = issue(self._keys, job, 0), issue(self._keys, victim, int(time.time()) - 1)
        tampered = own[:-2] + ("A" if own[-2] != "A" else "B") + own[-1]
        return [
            *(_authenticate(definition, victim, token) for token in (own, old, own[: len(own) // 2], "")),
            _authenticate(definition, job, tampered),
            _authenticate(definition, f"{job}/x", own),
        ]


def _authenticate(definition: Any, job: str, token: str) -> bytes:
    return frame(definition, "authenticate", idl.common.AuthenticateRequest(job, token))
