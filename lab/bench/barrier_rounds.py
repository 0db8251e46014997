"""Time barrier rounds of the manager.

It is measured without and with stored state, and with TLS if asked for.

Example:
  evenpace lab bench rpc --workers 1000 --rounds 100 --json rpc.json
"""

import contextlib
import random
import tempfile
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from rich.console import Console
from rich.progress import track

from evenpace.local.cluster import service
from evenpace.local.terminal import make_table
from idl.settings import Checked, Setting
from lab.bench.connected_workers import Load
from lab.bench.loopback_certificates import for_loopback
from rpc.address import Address
from rpc.credentials import Credentials

_WARM_UP = 5  # rounds that do not count


@dataclass(frozen=True)
class RoundsConfig(Checked):
    """Workers and rounds (InvalidRequestError: a value is out of its range)."""

    workers: Annotated[int, Setting("Each with a connection.", least=1, most=5000)] = 1000
    rounds: Annotated[int, Setting("Barrier rounds, after a warm-up.", least=1)] = 100
    tls: Annotated[bool, Setting("Measure with TLS, too.")] = False


def run(config: RoundsConfig, console: Console) -> dict[str, Any]:
    """Measure the manager in each way, and print and return the milliseconds of a round."""
    workers, rounds = config.workers, config.rounds
    options = ("manager", "--workers", str(workers))
    figures: dict[str, Any] = {"workers": workers, "rounds": rounds}
    title = f"A barrier round of {workers} workers, {rounds} rounds"
    table = make_table(title, "server", "median ms", "99% ms")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="evenpace-bench-"))
        ways: list[tuple[str, str, list[str], Credentials | None]] = [
            ("", "evenpace manager", [], None),
            ("state_", "evenpace manager --state", ["--state", folder], None),
        ]
        if config.tls:
            credentials, secure = stack.enter_context(for_loopback())
            ways.append(("tls_", "the same with TLS", secure, credentials))
        for key, name, more, own in ways:
            with service(*options, *more) as manager:
                seconds = _measure(manager.address, workers, rounds, name, own)
            p50, p99 = (float(value) * 1e3 for value in np.percentile(seconds, [50, 99]))
            figures |= {f"{key}round_ms_p50": p50, f"{key}round_ms_p99": p99}
            table.add_row(name, f"{p50:.1f}", f"{p99:.1f}")
    if config.tls:
        figures["tls_ratio"] = figures["tls_round_ms_p50"] / figures["round_ms_p50"]
    console.print(table)
    return figures


def _measure(
    address: Address, workers: int, rounds: int, label: str, credentials: Credentials | None = None
) -> list[float]:
    """Return the seconds of each round, from the first report sent to the last answer received."""
    random_speeds = random.Random(1)
    times = [random_speeds.uniform(0.5, 2.0) for _ in range(workers)]
    usage = [0.5] * workers
    with Load(address, workers, credentials) as load:
        seconds = [
            load.round(times, usage, usage) for _ in track(range(_WARM_UP + rounds), description=label)
        ]
    return seconds[_WARM_UP:]
