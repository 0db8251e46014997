"""Progress of a job, from the shards' ledgers as they grow, and its longest pause."""

import time
from pathlib import Path

from evenpace.lab.chaos.chaos_cluster import ChaosCluster
from evenpace.lab.chaos.ledgers import Rewind, entry, parse


class Progress:
    """Reader of a job's ledgers; `look` is to be called often.

    Attributes:
        versions: Version of each shard.
        moved: When a step was last seen, by the monotonic clock.
        longest: Longest time between two steps, in seconds.
        rewinds: Number of rewinds of shards.
    """

    def __init__(self, cluster: ChaosCluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self._read: dict[Path, int] = {}
        self.versions = dict.fromkeys(cluster.shards, 0)
        self.moved = time.monotonic()
        self.longest = 0.0
        self.rewinds = 0

    @property
    def version(self) -> int:
        """Return the version that all shards have reached."""
        return min(self.versions.values())

    def look(self) -> None:
        """Read the ledgers' new lines."""
        now, stepped = time.monotonic(), False
        for shard in self.versions:
            for path in self._cluster.ledgers(shard, self._job):
                with path.open("rb") as file:
                    file.seek(self._read.get(path, 0))
                    new, _, _ = file.read().rpartition(b"\n")
                self._read[path] = self._read.get(path, 0) + len(new) + bool(new)
                for line in parse(new.splitlines()):
                    what = entry(line)
                    if isinstance(what, Rewind):
                        self.versions[shard] = what.version
                        self.rewinds += bool(what.attempt)
                    elif what is not None:
                        self.versions[shard] = what.iteration + 1
                        stepped = True
        if stepped:
            self.longest = max(self.longest, now - self.moved)
            self.moved = now
