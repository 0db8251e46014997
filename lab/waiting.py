"""Waiting for a condition on something that has to be looked at meanwhile."""

import time
from collections.abc import Callable

from idl.errors import UnavailableError


def wait_until(
    what: str,
    condition: Callable[[], bool],
    look: Callable[[], object],
    *,
    tick: float,
    seconds: float = 300.0,
    error: Callable[[str], Exception] = UnavailableError,
) -> None:
    """Look every `tick` seconds until a condition holds; `what` names it, as "all workers to train".

    An error is raised where it does not hold within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise error(f"timed out after {seconds:g} s, waiting for {what}")
        look()
        time.sleep(tick)
