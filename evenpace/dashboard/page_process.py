"""The page as a process of its own, so that viewers hold up no barrier round, and no line on a terminal."""

import logging
import subprocess
import threading
from collections.abc import Sequence

from evenpace.dashboard.listening import address_of, listen
from rpc.address import Address
from rpc.processes import command_line, end_process
from rpc.server import Security

log = logging.getLogger(__name__)


class PageProcess:
    """The page of a manager; its address is bound at once.

    Args:
        options: Options of `evenpace dashboard` beside the addresses.
        announced: Whether it prints where it is.

    Raises:
        AddressInUseError, ConnectionLostError: The address cannot be listened on.
    """

    def __init__(self, http: Address, options: Sequence[str], *, announced: bool = True) -> None:
        self._http = http
        self._options = options
        self._announced = announced
        self._listener = listen(http)
        self.address = address_of(self._listener)  # where it listens
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self, manager: str) -> None:
        """Start it for the manager at a place; to be called by the process's main thread."""
        descriptor = self._listener.fileno()
        where = ("--manager", manager, "--http", str(self._http), "--http-socket", str(descriptor))
        self._popen = subprocess.Popen(
            command_line("dashboard", *where, *self._options),
            stdin=subprocess.DEVNULL,
            stdout=None if self._announced else subprocess.DEVNULL,
            pass_fds=(descriptor,),
            # Ctrl-C in the terminal is for this process, which ends the page.
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
            log.error("the page ended with status %d", status)


def page_options(names: Sequence[str], security: Security) -> list[str]:
    """Return the options of the page of a manager, by the manager's own credentials and checks.

    Args:
        names: Further names under which browsers may call it.
        security: The manager's.
    """
    files = security.credentials
    options: list[str] = ["--insecure"] * security.insecure
    if files is not None and files.ca and files.certificate and files.key:
        options += ["--ca", str(files.ca), "--certificate", str(files.certificate), "--key", str(files.key)]
    if security.token_keys is not None:
        options += ["--token-key", str(security.token_keys)]
    for name in names:
        options += ["--http-name", name]
    return options
