"""Calls of a job's manager by the controller of the job, which do not hold that up."""

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from batchsize_manager.client import ManagerClient
from idl.errors import EvenpaceError, InvalidRequestError
from rpc.address import Address
from rpc.periodic import Periodic
from scheduler.ray.access import Access
from scheduler.ray.process_actor import make_folder
from scheduler.ray.secrets import JobSecrets
from scheduler.ray.supervisor import PAUSING

_ASK_SECONDS = 1.0  # between two questions
_ANSWER_SECONDS = 5.0
_PACED = 5  # changes of the iteration over which its seconds are taken

log = logging.getLogger(__name__)

Change = Callable[[ManagerClient, str], object]
"""A change of a job, of the given name, by a client of its manager."""


@dataclass(frozen=True)
class Progress:
    """How far a job has come, as its manager says; see `JobSummary` of the wire."""

    state: str
    iteration: int
    batch_size: int
    reason: str = ""
    exchange: str = ""


class Pace:
    """How long a job's iterations take, from looks at it that are further apart than these may be."""

    def __init__(self) -> None:
        # When an iteration was first seen; of several, the error of one look counts less.
        self._begins: deque[tuple[int, float]] = deque(maxlen=_PACED + 1)
        self._looked = 0.0

    def note(self, iteration: int, now: float) -> None:
        """Take in the iteration that the job is in, and when that was seen, in seconds."""
        if self._begins and iteration < self._begins[-1][0]:
            self._begins.clear()  # what was taken back tells nothing
        if not self._begins or iteration > self._begins[-1][0]:
            self._begins.append((iteration, now))
        self._looked = now

    @property
    def seconds(self) -> float:
        """Return the seconds of an iteration: what the last ones took, or the present one has so far."""
        if not self._begins:
            return 0.0
        (first, since), (last, begun) = self._begins[0], self._begins[-1]
        return max((begun - since) / max(1, last - first), self._looked - begun)


class ManagerCalls:
    """A thread that calls a job's manager: asks how far the job has come, and has it change the job.

    Args:
        job: The job.
        secrets: Its certificates and tokens.
        asks_for_members: Whether each question is for the job's members, too, of whom there may be many.
    """

    def __init__(self, job: str, secrets: JobSecrets, *, asks_for_members: bool = False) -> None:
        self._job = job
        self._asks_for_members = asks_for_members
        self._folder = make_folder()
        self._credentials = Access.write(self._folder, secrets.client).credentials
        self._manager: Address | None = None
        self._changes: dict[str, tuple[Change, Callable[[], None] | None]] = {}  # those to be made
        self._made: set[str] = set()
        # The job's state as the manager said last, or `PAUSING`; empty before it knew the job.
        self.job_state = ""
        self._wake = threading.Event()
        self._stopped = False
        self.progress: Progress | None = None  # the last answer about the job
        # The workers that were the job's members then, if it is asked for them.
        self.members: tuple[str, ...] = ()
        self._pace = Pace()
        self._thread = threading.Thread(target=self._run, name="evenpace-manager-calls", daemon=True)
        self._thread.start()

    @property
    def iteration_seconds(self) -> float:
        """Return how long an iteration takes at present, in seconds; 0 before that is known."""
        return self._pace.seconds

    def move(self, manager: str | None) -> None:
        """Call the manager at this address from now on."""
        self._manager = None if manager is None else Address.parse(manager)
        self._wake.set()

    def ask(self, key: str, change: Change, then: Callable[[], None] | None = None) -> None:
        """Have the manager change the job as soon as it can be reached, unless it is being asked for that.

        Args:
            key: What tells this change from others.
            change: The change. The manager may refuse it: it is in force already, or not possible now.
            then: Called afterwards, in this object's thread. With it, the change is made once, and who asks
                again has `then` called at once.
        """
        if key in self._made and then is not None:
            then()
        else:
            self._changes.setdefault(key, (change, then))
            self._wake.set()

    def stop(self) -> None:
        """Call no more, and remove the credentials' files."""
        self._stopped = True
        self._wake.set()
        self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        calls = Periodic("calling the job's manager")
        while not self._stopped:
            asked = self._manager
            with calls:
                if asked is not None:
                    self._follow(asked)
            self._pause()

    def _follow(self, asked: Address) -> None:
        """Call the manager at an address until it is at another one, or does not answer."""
        try:
            with ManagerClient(asked, self._credentials, _ANSWER_SECONDS) as client:
                while self._manager == asked and not self._stopped:
                    self._call(client)
                    self._pause()
        except EvenpaceError as error:
            log.debug("the manager at %s does not answer: %s", asked, error)

    def _pause(self) -> None:
        self._wake.wait(_ASK_SECONDS)
        self._wake.clear()

    def _call(self, client: ManagerClient) -> None:
        for key, (change, then) in list(self._changes.items()):
            try:
                change(client, self._job)
            except InvalidRequestError as error:
                log.info("the manager refuses to %s: %s", key, error)
            if then is not None:
                self._made.add(key)
                then()
            del self._changes[key]
        for summary in client.jobs(self._job).jobs[:1]:
            state = summary.state
            if state == "paused" or self._asks_for_members:
                members = client.status(self._job).members
                self.members = tuple(one.worker for one in members)
                if state == "paused" and any(one.state == "working" for one in members):
                    state = PAUSING
            self.job_state = state
            self.progress = Progress(
                summary.state, summary.iteration, summary.batch_size, summary.reason, summary.exchange
            )
            self._pace.note(summary.iteration, time.monotonic())
