"""The page as a process of its own beside the manager, so that viewers hold up no barrier round."""

import logging
import subprocess
import threading
from pathlib import Path

from evenpace.dashboard.config import check_http
from evenpace.dashboard.identity import from_here
from evenpace.dashboard.listening import listen
from evenpace.processes import command_line, end_process
from rpc.address import Address
from rpc.server import Security

log = logging.getLogger(__name__)


class PageProcess:
    """The page of a manager; its address is bound at once, or the manager does not start.

    Args:
        http: The address to listen on.
        names: Further names under which browsers may call it.
        security: The manager's credentials and checks.

    Raises:
        InvalidRequestError: Other machines could reach it without TLS.
        AddressInUseError, ConnectionLostError: The address cannot be listened on.
    """

    def __init__(self, http: Address, names: tuple[str, ...], security: Security) -> None:
        check_http(http, security.credentials, insecure=security.insecure)
        self._http = http
        self._names = names
        self._security = security
        self._listener = listen(http)
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, manager: Address) -> None:
        """Start it for the manager at an address; to be called by the process's main thread."""
        descriptor = self._listener.fileno()
        security = self._security
        files = security.credentials
        options: list[str | Path] = []
        if files is not None and files.ca and files.certificate and files.key:
            options += ["--ca", files.ca, "--certificate", files.certificate, "--key", files.key]
        if security.token_keys is not None:
            options += ["--token-key", security.token_keys]
        for name in self._names:
            options += ["--http-name", name]
        self._popen = subprocess.Popen(
            [
                *command_line("dashboard", "--manager", str(from_here(manager, files))),
                *("--http", str(self._http), "--http-socket", str(descriptor)),
                *map(str, options),
                *["--insecure"] * security.insecure,
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=(descriptor,),
            # Ctrl-C in the terminal is for the manager, which ends the page.
            start_new_session=True,
        )
        self._listener.close()
        threading.Thread(target=self._see_its_end, args=(self._popen,), daemon=True).start()

    def stop(self) -> None:
        """End the page's process."""
        popen, self._popen = self._popen, None
        if popen is not None:
            end_process(popen)
        self._listener.close()

    def _see_its_end(self, popen: "subprocess.Popen[bytes]") -> None:
        status = popen.wait()
        if self._popen is not None:
            log.error("the page ended with status %d; the manager goes on without it", status)
