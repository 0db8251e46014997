"""Measuring how long a training script's steps take on this device, by batch size, through the real services.

A manager and a parameter server are started here, with the script as their only worker, and the batch size is
changed while it runs, as an operator would: so the script is any that trains with evenpace, and the times are
those that a manager balances by. A script that ends too soon is started again.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from batchsize_manager.client import ManagerClient
from batchsize_manager.learning.profiles import Profile, Step
from evenpace.local.cluster import LOOPBACK, CpuShare, LocalCluster, Surroundings, free_ports
from evenpace.local.profile_config import ProfileConfig
from idl.errors import EvenpaceError, InvalidRequestError
from idl.records import WorkerRecord
from rpc.processes import Process

_JOB, _WORKER = "default", "profiled"
_ENOUGH = 2  # batch sizes begun, of which the last does not fit
_SMALLEST = 8  # samples
_WARM_UP = 2  # steps of each batch size and start that do not count: kernels are chosen, graphs traced
_POLL_SECONDS = 0.02
_OUT_OF_MEMORY = (  # in what PyTorch, JAX, TensorFlow, NumPy and evenpace say, in lower case
    "out of memory",
    "memory runs out",
    "memoryerror",
    "can't allocate memory",
    "not enough memory",
    "bad_alloc",
    "status_alloc_failed",
    "resource_exhausted",
    "oom when allocating",
)
_KILLED = -9  # status of a process that the kernel ended for want of memory


def profile(
    script: Path,
    arguments: Sequence[str] = (),
    config: ProfileConfig | None = None,
    on_step: Callable[[int, int], None] = lambda size, steps: None,
) -> tuple[Profile, str]:
    """Measure a script's steps at powers of two and their midpoints, up to what fits (VirtualFlow, 5.1.1).

    Args:
        config: What is measured.
        on_step: Called with a batch size, and the number of its steps measured so far.

    Returns:
        The profile, and why no larger batch is in it, in words.

    Raises:
        EvenpaceError: The script failed for another reason than want of memory, or ended before anything was
            measured.
    """
    profiling = _Profiling(config or ProfileConfig(), on_step)
    while not profiling.ended:
        before = profiling.progress
        with tempfile.TemporaryDirectory(prefix="evenpace-profile-") as folder:
            profiling.run(Path(folder), script, arguments)
        if not profiling.ended and profiling.progress == before:
            profiling.ended = "the script trains for too few steps of a larger batch"
    return profiling.result(script.name), profiling.ended


def batch_sizes(smallest: int, largest: int, unit: int = 1) -> Iterator[int]:
    """Yield powers of two and the midpoints between them, times `unit`, from `smallest` to `largest`."""
    power = 1
    while power * unit <= largest:
        for number in (power, power * 3 // 2) if power > 1 else (power,):
            if smallest <= number * unit <= largest:
                yield number * unit
        power *= 2


class _Profiling:
    """What was measured so far, in one or more starts of the script."""

    def __init__(self, config: ProfileConfig, on_step: Callable[[int, int], None]) -> None:
        self.ended = ""  # why no larger batch is measured, in words; empty while there is more to measure
        self._config = config
        self._on_step = on_step
        self._measured: dict[int, list[WorkerRecord]] = {}  # by batch size; the last may be incomplete
        self._device = ""
        self._micro_batch: int | None = None
        self._limit: int | None = None

    @property
    def progress(self) -> int:
        """Steps measured so far."""
        return sum(map(len, self._measured.values()))

    def run(self, folder: Path, script: Path, arguments: Sequence[str]) -> None:
        """Start services and script, and measure until all is known or the script has ended."""
        config = self._config
        options = {} if config.device is None else {"--device": config.device}
        share = None if config.cpu_share is None else CpuShare(config.cpu_share, kind=config.limit_kind)
        group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": LOOPBACK}
        group["MASTER_PORT"] = str(free_ports(1)[0])
        surroundings = Surroundings(environment=group if config.all_reduce else {})
        shards = 0 if config.all_reduce else 1
        first = max(self._measured, default=config.smallest or _SMALLEST)
        with (
            LocalCluster(
                folder,
                shards=shards,
                surroundings=lambda name: surroundings,
                policy="even",
                batch_size=first,  # the script's own may not fit into one device
            ) as cluster,
            ManagerClient(cluster.manager) as client,
        ):
            process = cluster.start_worker(_WORKER, script, arguments, options, share)
            try:
                self._measure(client, process)
            except InvalidRequestError:
                if _has_worker(client):
                    raise
                while process.is_running:  # the job is over, and the script about to end
                    time.sleep(_POLL_SECONDS)
            if not process.is_running and process.popen is not None and process.popen.returncode:
                self._take_failure(process)

    def result(self, script: str) -> Profile:
        """Return the profile (EvenpaceError: nothing was measured)."""
        steps = tuple(_step(size, records) for size, records in self._measured.items() if records)
        if not steps:
            raise EvenpaceError(
                f"{script} ended before a step was measured: have it train for more steps, or give a "
                f"--smallest batch that an epoch has more of"
            )
        return Profile(self._device, script, steps, self._micro_batch, self._limit)

    def _measure(self, client: ManagerClient, process: Process) -> None:
        """Measure one batch size after the other (InvalidRequestError: the job is over)."""
        status = self._first_status(client, process)
        if status is None:
            return
        spec = status.summary.spec
        self._device, self._micro_batch = status.members[0].device, spec.micro_batch
        if not self._device:
            raise EvenpaceError("the script's session names no device: give --device")
        bounds = status.members[0].bounds
        unit = self._micro_batch or bounds.granularity
        smallest = self._config.smallest or (_SMALLEST if self._micro_batch is None else unit)
        largest = min(self._config.largest or spec.dataset_size, spec.dataset_size)
        sizes = list(batch_sizes(smallest, largest, unit))
        if not sizes:
            raise EvenpaceError(
                f"no batch size from {smallest} to {largest} samples: they are powers of two and midpoints, "
                f"times {unit}"
            )
        following = 0  # the first iteration that was not read
        for size in sizes:
            records = self._measured.setdefault(size, [])
            if len(records) >= self._config.steps:
                continue
            maximum = _maximum(client)
            if size > maximum:
                del self._measured[size]
                self._limit, self.ended = maximum, f"the worker takes at most {maximum} samples"
                return
            client.set_total_batch_size(_JOB, size)
            warming_up = _WARM_UP
            while len(records) < self._config.steps:
                _, new = client.history(_JOB, following)
                if not new and not process.is_running:
                    return
                for record in new:
                    following = record.iteration + 1
                    if record.total != size:  # planned before the change, or an epoch's last
                        continue
                    warming_up -= 1
                    if warming_up < 0 and len(records) < self._config.steps:
                        records.append(record.parts[_WORKER])
                        self._on_step(size, len(records))
                if not new:
                    time.sleep(_POLL_SECONDS)
            if _maximum(client) <= size < maximum:  # it was computed in pieces
                self._end_before(size)
                return
        if largest == self._config.largest:
            self.ended = f"{largest} samples were to be the most"
        else:
            self.ended = f"the data set has {largest} samples"

    def _first_status(self, client: ManagerClient, process: Process) -> Any | None:
        """Wait for the script to join; return None if it ends before."""
        while process.is_running:
            try:
                status = client.status(_JOB)
                if status.members:
                    return status
            except InvalidRequestError:  # there is no job yet
                pass
            time.sleep(_POLL_SECONDS)
        return None

    def _take_failure(self, process: Process) -> None:
        """End the profile if memory ran out, after smaller batches had fitted.

        Raises:
            ProcessFailedError: The script failed for another reason, or with the smallest batch.
        """
        assert process.popen is not None
        short = process.popen.returncode == _KILLED or is_out_of_memory(process.tail())
        if not short or len(self._measured) < _ENOUGH:
            raise process.failure()
        self._end_before(max(self._measured))

    def _end_before(self, size: int) -> None:
        """End the profile before a batch size that did not fit."""
        del self._measured[size]
        self._limit = max(self._measured, default=None)
        self.ended = f"{size} samples do not fit into its memory"


def is_out_of_memory(log: str) -> bool:
    """Return whether the end of a script's log says that memory ran out, in any framework's words."""
    return any(message in log.lower() for message in _OUT_OF_MEMORY)


def _has_worker(client: ManagerClient) -> bool:
    """Return whether the job goes on."""
    try:
        return bool(client.status(_JOB).members)
    except InvalidRequestError:
        return False


def _maximum(client: ManagerClient) -> int:
    """Return the most samples that the worker takes, as far as it has found out.

    Raises:
        InvalidRequestError: The job is over.
    """
    members = client.status(_JOB).members
    if not members:
        raise InvalidRequestError(f"job {_JOB!r} has no worker any more")
    maximum: int = members[0].bounds.maximum
    return maximum


def _step(size: int, records: Sequence[WorkerRecord]) -> Step:
    times = [record.batch_processing_time for record in records]
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    memory = max(record.memory_usage for record in records)
    return Step(size, statistics.median(times), high - low, len(times), memory)
