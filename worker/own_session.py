"""The session of this process, which loaders and losses use where they are given no other."""

from idl.errors import InvalidRequestError
from worker.session import Session

_session: Session | None = None


def set_own_session(session: Session) -> None:
    """Let this be the process's session: there is one, as torch.distributed has one default group."""
    global _session  # noqa: PLW0603 - that is what it is
    _session = session


def has_own_session() -> bool:
    """Whether this process has a session."""
    return _session is not None


def own_session() -> Session:
    """This process's session.

    Raises:
        InvalidRequestError: There is none.
    """
    if _session is None:
        raise InvalidRequestError(
            "no session with a manager: start the script with "
            "`evenpace worker --manager HOST:PORT [--ps HOST:PORT] SCRIPT`, or call evenpace.connect() first"
        )
    return _session
