"""CPU shares of the workers of a job on one machine, as its configurations have them."""

import os
from typing import Annotated

from idl.errors import InvalidRequestError
from idl.settings import Setting
from worker.resources.cpu_limits import LimitKind


def parse_shares(text: str) -> tuple[float, ...]:
    """Read the CPU shares of workers, as in "0.8,0.4,0.2,0.1".

    Raises:
        InvalidRequestError: A share is no number, or more than the cores here.
    """
    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = ()
    cpus = os.cpu_count() or 1
    if not shares or not all(0.01 <= share <= cpus for share in shares):
        raise InvalidRequestError(
            f"shares {text!r}: give numbers from 0.01 to {cpus}, the cores here, as in 0.8,0.4,0.2,0.1"
        )
    return shares


Limit = Annotated[LimitKind, Setting("How CPU shares are kept to; see `evenpace worker`.")]
"""How CPU shares are kept to; see `worker.resources.cpu_limits.limit_cpu`."""
