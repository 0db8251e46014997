"""Sources of a run's records: a manager's state on disk, or a live manager.

Both give the run's facts, members and events, and its iterations in pages, oldest first, so that a run of
any length is read without being held in memory.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from batchsize_manager.client import ManagerClient
from batchsize_manager.storage.state_reader import SavedRun, StateReader
from evenpace.overview import phrases
from idl.errors import EvenpaceError
from idl.records import IterationRecord
from idl.translation import read_spec

_READ_AT_ONCE = 20_000  # records of workers
_FIRST_PAGE = 16  # iterations, before it is known how many workers they have
_EVENTS = 1000  # the last ones


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run; times in seconds since 1970, None where they are not known."""

    run: str  # the run's id
    job: str  # the job's name
    spec: Mapping[str, Any]  # `JobSpec` as a mapping
    policy: str  # name of the balancing policy
    predictor: str | None  # name of the predictor; empty: the policy has none; None: it is not known
    sizer: str | None  # name of the sizer; None: it is not known
    mode: str  # mode of synchronisation
    attempt: int  # number of the last attempt
    state: str  # "not ended", or as `phrases.job_state` has it
    # Time of its beginning; of a live manager, the time since which that manager has the job.
    begun: float | None
    ended: float | None  # time of its end
    ending: str  # reason of its end; empty if it goes on
    source: str  # the source, in words


@dataclass(frozen=True)
class RunEvent:
    """An event in words, and its time in seconds since 1970."""

    at: float
    text: str


class RunSource(ABC):
    """A run in any source."""

    facts: RunFacts  # the run's facts
    first: int  # the first iteration that can be read
    last: int | None  # the last complete iteration at present; None without any

    @property
    def iterations(self) -> int:
        """The number of complete iterations at present."""
        return 0 if self.last is None else self.last + 1 - self.first

    def pages(self) -> Iterator[list[IterationRecord]]:
        """Return the iterations up to `last`, oldest first (EvenpaceError: they cannot be read)."""
        following = self.first
        while self.last is not None and following <= self.last:
            page = [one for one in self._page(following) if one.iteration <= self.last]
            if not page:  # the job was rewound meanwhile
                return
            yield page
            following = page[-1].iteration + 1

    @abstractmethod
    def events(self) -> list[RunEvent]:
        """Return the last events, oldest first."""

    @abstractmethod
    def states(self) -> dict[str, str]:
        """Return the members' states."""

    @abstractmethod
    def _page(self, first: int) -> list[IterationRecord]:
        """Return some iterations from `first` on, oldest first."""


class StoredRun(RunSource):
    """A run in a manager's state, also while the manager writes on.

    Args:
        source: The state's place, in words.
    """

    def __init__(self, reader: StateReader, saved: SavedRun, source: str) -> None:
        self._reader = reader
        self._members = saved.state.members
        self._some = _FIRST_PAGE
        self.facts = RunFacts(
            run=saved.run,
            job=saved.job,
            spec=asdict(saved.state.spec),
            policy=saved.policy,
            predictor=None,
            sizer=saved.state.sizer,
            mode=saved.state.mode,
            attempt=saved.state.attempt,
            state="not ended" if saved.ended is None else phrases.job_state("ended", saved.ending or ""),
            begun=saved.begun,
            ended=saved.ended,
            ending=saved.ending or "",
            source=source,
        )
        self.first = saved.state.first_iteration
        last = reader.last_records(saved.run, 1)
        self.last = last[0].iteration if last else None

    def events(self) -> list[RunEvent]:
        """Return the last events; see `RunSource.events`."""
        return [
            RunEvent(event.at, event.event) for event in self._reader.last_events(self.facts.run, _EVENTS)
        ]

    def states(self) -> dict[str, str]:
        """Return the members, whose present states are not kept; see `RunSource.states`."""
        return {member.worker: "member" for member in self._members}

    def _page(self, first: int) -> list[IterationRecord]:
        records = self._reader.records(self.facts.run, first, self._some)
        if records:
            self._some = max(1, _READ_AT_ONCE // max(1, len(records[-1].workers)))
        return records


class LiveRun(RunSource):
    """A run of a live manager.

    Args:
        summary: The run's `JobSummary`.
        source: The manager's address, in words.
    """

    def __init__(self, client: ManagerClient, summary: Any, source: str) -> None:
        self._client = client
        self.facts = RunFacts(
            run=summary.run,
            job=summary.job,
            spec=asdict(read_spec(summary.spec)),
            policy=summary.policy,
            predictor=summary.predictor,
            sizer=summary.sizer,
            mode=summary.mode,
            attempt=summary.attempt,
            state=phrases.job_state(summary.state, summary.reason),
            begun=time.time() - summary.age,
            ended=None,
            ending=summary.reason,
            source=source,
        )
        self.first = 0
        self.last = summary.iteration - 1 if summary.iteration > 0 else None

    def events(self) -> list[RunEvent]:
        """Return the last events; see `RunSource.events`."""
        return [RunEvent(event.at, event.text) for event in self._status.events][-_EVENTS:]

    def states(self) -> dict[str, str]:
        """Return the members' states; see `RunSource.states`."""
        return {member.worker: member.state for member in self._status.members}

    def _page(self, first: int) -> list[IterationRecord]:
        run, page = self._client.history(self.facts.job, first)
        self._check(run)
        return page

    @cached_property
    def _status(self) -> Any:
        status = self._client.status(self.facts.job)
        self._check(status.summary.run)
        return status

    def _check(self, run: str) -> None:
        if run != self.facts.run:
            raise EvenpaceError(f"job {self.facts.job} was started again meanwhile; ask once more")
