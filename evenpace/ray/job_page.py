"""The live page about a job on a Ray cluster, on the machine of whoever follows the job."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from evenpace.dashboard.config import check_plain
from evenpace.dashboard.page_process import PageProcess
from rpc.address import Address
from scheduler.ray.access import Access
from scheduler.ray.controller import News


class JobPage:
    """The page about one job, which runs as long as `with`, once the job's manager listens.

    It goes by the job's certificate and token, and asks the manager wherever that is. Viewers who are to
    change the job need its token.

    Args:
        http: The address to listen on, of this machine's loopback; it is bound at once.

    Raises:
        InvalidRequestError: Others could reach the address.
        AddressInUseError, ConnectionLostError: It cannot be listened on.
    """

    def __init__(self, http: Address) -> None:
        check_plain(http)
        self._stack = contextlib.ExitStack()
        with self._stack:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="evenpace-page-"))
            self._access = Access(Path(folder))
            self._page = PageProcess(http, ("--plain-http", *self._access.options), announced=False)
            self._stack.callback(self._page.stop)
            self._stack = self._stack.pop_all()
        self._manager: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def trust(self, credentials: Mapping[str, bytes]) -> None:
        """Take the files of `JobHandle.credentials`; to be called before `follow`."""
        Access.write(self._access.folder, credentials)

    def follow(self, news: News) -> str:
        """Ask the manager where it is now; the first time that it is known, the page begins.

        Returns:
            Where the page is, in words, as it begins; else empty.
        """
        if news.manager is None or news.manager == self._manager:
            return ""
        begins, self._manager = self._manager is None, news.manager
        self._access.move(news.manager)
        if not begins:
            return ""
        self._page.start(self._access.manager)
        return f"page on http://{self._page.address}/"
