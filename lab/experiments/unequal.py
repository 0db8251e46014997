"""Run of one scheme on workers of unequal speed; it evaluates nothing.

Workers with unequal CPU shares stand for the unequal GPUs of LB-BSP's Cluster-A (section 5.1): what differs
between the schemes is how workers of different speed wait for each other, not what makes them differ.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from evenpace.local.cluster import LOOPBACK, LocalCluster, Surroundings
from evenpace.local.fields import parse_shares
from idl.errors import NotMemberError
from idl.records import IterationRecord
from idl.settings import Setting
from lab.experiments.scheme_run import (
    RunConfig,
    RunTooShortError,
    SchemeRun,
    Snapshots,
    followed,
    manager_options,
    training,
)
from lab.experiments.schemes import Scheme
from lab.network import WorkerNetwork
from lab.observer import Observer
from rpc.address import Address

_FIRST_PAUSE = 0.25  # seconds to the second snapshot; from then on the job's pace is known
_BEYOND = 10  # multiple of a run's updates after which a worker without barriers would end by itself

UnequalShares = Annotated[
    tuple[float, ...],
    Setting(
        "The CPU share of each worker: unequal shares stand for unequal GPUs.",
        metavar="CORES,...",
        read=parse_shares,
    ),
]
"""Cores that each worker may use."""


def run_unequal(
    scheme: Scheme,
    config: RunConfig,
    folder: Path,
    watch: Callable[[int, Sequence[IterationRecord]], None],
    network: WorkerNetwork | None = None,
    more: Sequence[str] = (),
    end: Callable[[Address], None] = lambda manager: None,
) -> SchemeRun:
    """Run a scheme, one without backup workers or stealing, to its end.

    A run without barriers ends when it has made its updates, while all workers are still there: had each a
    number of iterations of its own, the last ones would be the slowest worker's alone. The snapshots'
    `updates` are gradients, in the synchronous schemes one for each worker and step, from the start of
    training to its last update.

    `watch` is called soon after each iteration, with the number of iterations done, or as many as the updates
    make up, and with the records of the finished iterations; `end` with the manager's address when the
    workers have ended. Without a network with a place for each worker they are on this machine's loopback.
    """
    names = [f"worker-{rank}" for rank in range(len(config.shares))]
    places = {} if network is None else {name: network.prefix(i) for i, name in enumerate(names)}
    cluster = LocalCluster(
        folder.resolve(),
        workers=len(names),
        host=LOOPBACK if network is None else network.host,
        surroundings=lambda name: Surroundings(places.get(name, ())),
        manager_options=more,
        **manager_options(scheme, config),
    )
    # Without barriers a fast worker makes more than its part of the updates. The run is stopped once there
    # are enough, and all workers must still be there then, even if that comes late.
    iterations = config.iterations if scheme.synchronous else _BEYOND * config.updates
    length = ["--batch-size", str(config.total_batch_size), "--iterations", str(iterations)]
    with training(cluster, config, config.shares, lambda rank: length) as observer:
        follower = _Follower(observer, scheme, config)
        for _ in followed(cluster, observer):
            follower.look(time.monotonic())
            watch(follower.done, observer.iterations)
            if follower.over:
                break
        else:
            raise RunTooShortError(
                f"{scheme.name}: the workers ended after {follower.done} of {config.iterations} "
                f"iterations; see {folder}"
            )
        if scheme.synchronous:  # they have nothing left to do but to end
            cluster.wait()
        end(cluster.manager)
    records = [record.plain() for record in observer.iterations]
    return SchemeRun(scheme, records, follower.snapshots)


class _Follower:
    """Follower of a job, which takes snapshots of its parameters, evenly over its updates, until it is over.

    The number of updates is known only from a snapshot, so the time of the next one is estimated from the
    pace between the last two.
    """

    def __init__(self, observer: Observer, scheme: Scheme, config: RunConfig) -> None:
        self._observer = observer
        self._synchronous = scheme.synchronous
        self._config = config
        self._snapshots = Snapshots(observer, config, len(config.shares) if scheme.synchronous else 1)
        self._began = 0.0
        self._due = 0.0  # when the next snapshot is
        self.snapshots = self._snapshots.taken
        self.over = False

    @property
    def done(self) -> int:
        """Return the iterations done, or the updates over the number of workers."""
        if self._synchronous:
            return len(self._observer.iterations)
        return self.snapshots[-1].updates // len(self._config.shares) if self.snapshots else 0

    def look(self, now: float) -> None:
        """Look at the job's progress, and take a snapshot if one is due; `now` is monotonic, in seconds."""
        config = self._config
        if self._synchronous and len(self._observer.iterations) >= config.iterations:
            self._snapshots.take(now - self._began, config.iterations)
            self.over = True
        elif not self.snapshots:
            if len(self._observer.members) == len(config.shares):
                self._begin(now)
        # An asynchronous run needs snapshots in any case: only they have its number of updates.
        elif now >= self._due and (config.snapshots or not self._synchronous):
            self._snapshots.take(now - self._began)
            self._due = now + self._pause()
            self.over = not self._synchronous and self.snapshots[-1].updates >= config.updates

    def _begin(self, now: float) -> None:
        self._began, self._due = now, now + _FIRST_PAUSE
        with contextlib.suppress(NotMemberError):  # no worker has opened the job at the parameter server yet
            self._snapshots.take(0.0)

    def _pause(self) -> float:
        """Return the seconds until the updates between two snapshots have been made."""
        before, last = self.snapshots[-2:]
        made, took = last.updates - before.updates, last.seconds - before.seconds
        return self._config.updates / max(self._config.snapshots, 1) * took / made if made > 0 else took
