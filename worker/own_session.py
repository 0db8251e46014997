"""The session of this process, the default of loaders and losses."""

from idl.errors import InvalidRequestError
from worker.session import Session

_session: Session | None = None


def set_own_session(session: Session) -> None:
    """Set the process's session; there is one, as torch.distributed has one default group."""
    global _session  # noqa: PLW0603 - one session for each process
    _session = session


def has_own_session() -> bool:
    """Return whether this process has a session."""
    return _session is not None


def own_session() -> Session:
    """Return this process's session.

    Raises:
        InvalidRequestError: The process has none.
    """
    if _session is None:
        raise InvalidRequestError(
            "no session with a manager: start the script with `evenpace run SCRIPT --workers N`, or "
            "`evenpace worker --manager HOST:PORT [--ps HOST:PORT] SCRIPT`, or call evenpace.connect() first"
        )
    return _session
