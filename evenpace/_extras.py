"""Errors about frameworks that are not installed, which say what to install."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Import what an extra of evenpace installs.

    Raises:
        ModuleNotFoundError: A package is missing; the message says what to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'evenpace[{extra}]'", name=error.name
        ) from error
