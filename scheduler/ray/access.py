"""Files with which a process on this machine calls a job's services."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rpc.credentials import Credentials
from scheduler.ray.process_actor import TLS, write_files
from scheduler.ray.secrets import TOKEN_FILE

_MANAGER_FILE = "manager.address"


@dataclass(frozen=True)
class Access:
    """A certificate and a token of a job's, and where its manager is, in the files of one folder."""

    folder: Path

    @classmethod
    def write(cls, folder: Path, files: Mapping[str, bytes]) -> "Access":
        """Write the files of `JobSecrets.client` into a folder."""
        write_files(folder, files)
        return cls(folder)

    def move(self, manager: str) -> None:
        """Say where the manager is, as HOST:PORT; who uses the files finds it there."""
        write_files(self.folder, {_MANAGER_FILE: f"{manager}\n".encode()})

    @property
    def credentials(self) -> Credentials:
        """Return the certificate and the token."""
        return Credentials.of_folder(self.folder / TLS, self.folder / TOKEN_FILE)

    @property
    def manager(self) -> str:
        """Return the manager's place, as commands take it."""
        return f"@{self.folder / _MANAGER_FILE}"

    @property
    def options(self) -> tuple[str, ...]:
        """Return the options of commands for the certificate and the token."""
        return ("--tls", str(self.folder / TLS), "--token-file", str(self.folder / TOKEN_FILE))
