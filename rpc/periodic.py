"""Work that is repeated periodically, and that one failure must not end."""

import logging
from types import TracebackType

log = logging.getLogger(__name__)


class Periodic:
    """A context manager around one round of such work: an error is logged, once until a round succeeds.

    Args:
        what: The work, in words, for the log.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._failing = False

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        failing = isinstance(error, Exception)
        if failing and not self._failing:
            log.error("%s failed; it is tried again", self._what, exc_info=error)
        elif self._failing and error is None:
            log.info("%s succeeds again", self._what)
        self._failing = failing
        return failing
