"""Tokens for the honest job and for its attackers, and the forgeries that an attacker can make of its own."""

import time
from pathlib import Path
from typing import Any

import idl
from lab.attacks.honest_job import JOB
from lab.attacks.long_answers import frame
from rpc.credentials import Credentials
from rpc.tokens import TokenKeys, issue, write_new_key


class Tokens:
    """Tokens of one attack, whose folder they are in."""

    def __init__(self, folder: Path) -> None:
        self.key = folder / "key"  # file of the services' keys
        self.credentials = Credentials(token=folder / "honest")  # the honest job's
        write_new_key(self.key, add=False)
        self._keys = TokenKeys(self.key)
        (folder / "honest").write_text(issue(self._keys, JOB, 0))

    def hello(self, definition: type, job: str) -> bytes:
        """Return the call that authenticates a connection for a job."""
        return _authenticate(definition, job, issue(self._keys, job, 0))

    def impostures(self, definition: type, job: str, victim: str) -> list[bytes]:
        """Return calls that must not: with another job's token, an expired one, a changed one, and none."""
        own, old = issue(self._keys, job, 0), issue(self._keys, victim, int(time.time()) - 1)
        tampered = own[:-2] + ("A" if own[-2] != "A" else "B") + own[-1]
        return [
            *(_authenticate(definition, victim, token) for token in (own, old, own[: len(own) // 2], "")),
            _authenticate(definition, job, tampered),
            _authenticate(definition, f"{job}/x", own),
        ]


def _authenticate(definition: Any, job: str, token: str) -> bytes:
    return frame(definition, "authenticate", idl.common.AuthenticateRequest(job, token))
