"""Progress of a job, from what is written down of its steps, and its longest pause."""

import time

from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.ledgers import parse
from lab.chaos.step_records import Place, step_records
from lab.new_lines import NewLines


class Progress:
    """Reader of a job's steps; `look` is to be called often."""

    def __init__(self, cluster: ChaosCluster, job: str) -> None:
        self._records = step_records(cluster, job)
        self._lines = NewLines()
        self._places: dict[str, Place] = dict.fromkeys(self._records.files(), (0, 0))
        self.moved = time.monotonic()  # when a step was last seen, by the monotonic clock
        self.longest = 0.0  # longest time between two steps, in seconds

    @property
    def version(self) -> int:
        """Return the version that the job has reached; of several shards, that which all have."""
        return self._records.version(self._places.values())

    @property
    def attempt(self) -> int:
        """Return the job's latest attempt that is written down."""
        return max(attempt for attempt, _ in self._places.values())

    def look(self) -> None:
        """Read the files' new lines."""
        now, stepped = time.monotonic(), False
        for writer, paths in self._records.files().items():
            for path in paths:
                for line in parse(self._lines.of(path)):
                    if (found := self._records.place(line)) is not None:
                        self._places[writer], of_step = found
                        stepped = stepped or of_step
        if stepped:
            self.longest = max(self.longest, now - self.moved)
            self.moved = now
