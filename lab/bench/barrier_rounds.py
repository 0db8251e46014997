"""Time barrier rounds of the manager, and of thriftpy2's threaded server doing the same.

The manager is measured without and with stored state, and with TLS if asked for.

Example:
  evenpace lab bench rpc --workers 1000 --rounds 100 --json rpc.json
"""

import random
import statistics
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
    """Measure the servers, and print and return the milliseconds of a round."""
    workers, rounds = config.workers, config.rounds
    options = ("manager", "--workers", str(workers))
    with service(*options) as manager:
        ours = _measure(manager.address, workers, rounds, "evenpace")
    with (
        tempfile.TemporaryDirectory(prefix="evenpace-bench-") as folder,
        service(*options, "--state", folder) as manager,
    ):
        kept = _measure(manager.address, workers, rounds, "evenpace --state")
    secure: list[float] = []
    if config.tls:
        with (
            for_loopback() as (credentials, tls_options),
            service(*options, *tls_options) as manager,
        ):
            secure = _measure(manager.address, workers, rounds, "evenpace, TLS", credentials)
    with service(str(workers), module="lab.bench.threaded_manager") as manager:
        threaded = _measure(manager.address, workers, rounds, "TThreadedServer")
    p50, p99 = np.percentile(ours, [50, 99])
    kept_p50, kept_p99 = np.percentile(kept, [50, 99])
    threaded_p50 = statistics.median(threaded)
    figures = {
        "workers": workers,
        "rounds": rounds,
        "round_ms_p50": p50 * 1e3,
        "round_ms_p99": p99 * 1e3,
        "state_round_ms_p50": kept_p50 * 1e3,
        "state_round_ms_p99": kept_p99 * 1e3,
        "threaded_round_ms_p50": threaded_p50 * 1e3,
        "ratio": threaded_p50 / p50,
    }
    if config.tls:
        tls_p50, tls_p99 = np.percentile(secure, [50, 99])
        figures |= {"tls_round_ms_p50": tls_p50 * 1e3, "tls_round_ms_p99": tls_p99 * 1e3}
        figures["tls_ratio"] = tls_p50 / p50
    table = make_table(
        f"A barrier round of {workers} workers, {rounds} rounds", "server", "median ms", "99% ms"
    )
    table.add_row("evenpace manager", f"{p50 * 1e3:.1f}", f"{p99 * 1e3:.1f}")
    table.add_row("evenpace manager --state", f"{kept_p50 * 1e3:.1f}", f"{kept_p99 * 1e3:.1f}")
    if config.tls:
        table.add_row("the same with TLS", f"{tls_p50 * 1e3:.1f}", f"{tls_p99 * 1e3:.1f}")
    table.add_row(
        "thriftpy2 TThreadedServer", f"{threaded_p50 * 1e3:.1f}", f"{np.percentile(threaded, 99) * 1e3:.1f}"
    )
    console.print(table)
    console.print(f"The threaded server takes {figures['ratio']:.2f} times as long.")
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
