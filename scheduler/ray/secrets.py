"""The certificates and tokens of one job, made as it is submitted.

Each job has an authority, a key of tokens, and a token of its own, so that jobs cannot reach each other's
services. They travel in the arguments of Ray's actors, and lie in files only where a process needs them.
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rpc import tokens
from rpc.certificates import CA_KEY_FILE, create_authority, issue
from rpc.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE
from rpc.tokens import TokenKeys, new_key
from scheduler.ray.process_actor import TLS

TOKEN_KEY_FILE, TOKEN_FILE = "tokens.key", "token"
_DAYS = 365
_FILES = (CA_FILE, CERTIFICATE_FILE, KEY_FILE)


@dataclass(frozen=True)
class JobSecrets:
    """What the processes of a job need to trust each other; files' contents by name."""

    # For services: the authority, which certifies each on its node, and the tokens' key.
    service: Mapping[str, bytes] = field(repr=False)
    # For workers, and whoever looks after the job: a certificate for calling, and the job's token.
    client: Mapping[str, bytes] = field(repr=False)


def make_secrets(job: str) -> JobSecrets:
    """Make the secrets of a job, which are valid for a year."""
    with tempfile.TemporaryDirectory(prefix="evenpace-secrets-") as name:
        folder = Path(name)
        create_authority(folder, _DAYS)
        issue(folder, "client", (), _DAYS)
        authority = {file: (folder / file).read_bytes() for file in (CA_FILE, CA_KEY_FILE)}
        client = {f"{TLS}/{file}": (folder / "client" / file).read_bytes() for file in _FILES}
    key = new_key()
    token = tokens.issue(TokenKeys(key), job, int(time.time() + _DAYS * 86400))
    return JobSecrets(
        {**authority, TOKEN_KEY_FILE: key.hex().encode()}, {**client, TOKEN_FILE: token.encode()}
    )
