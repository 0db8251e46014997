"""A job that goes back is counted alike wherever it is shown: live, in reports, and by an observer.

The manager is a real one, which is told to rewind as workers tell it after a shard has lost steps.
"""

import contextlib

import pytest

import idl
from batchsize_manager.client import ManagerClient
from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.state_reader import open_state
from evenpace.overview.feed import Feed
from evenpace.overview.figures import JobFigures
from evenpace.reports.run_data import gather
from evenpace.reports.run_source import LiveRun, StoredRun
from lab.observer import Observer
from tests.services import MemberWorker, serving

_wire = idl.batchsize_manager

JOB = "rewound"


class Rewound:
    """A job of one worker at a manager with state, and everything that counts its iterations."""

    def __init__(self, address, folder):
        self.folder = folder
        self.worker = MemberWorker(address, JOB)
        self.attempt = 0
        self.client = ManagerClient(address)
        self.feed = Feed(self.client)
        self.observer = Observer(address, (), JOB)

    def close(self):
        """Close the connections."""
        self.worker.close()
        self.observer.close()
        self.client.close()

    def train(self, iterations, polled=True):
        """Train on, and look after each iteration, or not."""
        for _ in range(iterations):
            time = 0.5 + 0.01 * self.worker.iteration + 0.1 * self.attempt
            request = _wire.ReportRequest(
                self.worker.identity, self.worker.iteration, time, 0.0, 0.5, 0.5, attempt=self.attempt
            )
            self.worker.client.call("report", request)
            self.worker.iteration += 1
            if polled:
                self.look()

    def rewind(self, version):
        """Have the job go on from an iteration in another attempt."""
        identity = self.worker.identity
        self.worker.client.call("recover", _wire.RecoverRequest(identity, self.attempt))
        self.attempt += 1
        self.worker.client.call("rewind", _wire.RewindRequest(identity, self.attempt, version))
        self.worker.iteration = version

    def look(self):
        """Let those that follow the job look."""
        self.feed.poll()
        self.observer.poll()

    def counts(self):
        """Return iterations, their attempts, and all figures, by who counts them."""
        self.look()
        live = self.feed.jobs[JOB]
        (summary,) = self.client.jobs(JOB).jobs
        reported = gather(LiveRun(self.client, summary, "here"), 0.0, lambda number: None)
        with open_state(self.folder) as reader:
            (run,) = reader.runs(JOB)
            stored = gather(StoredRun(reader, run, "here"), 0.0, lambda number: None)
            kept = reader.records(run.run, 0, 1000)
        assert [record.attempt for record in self.observer.iterations] == [one.attempt for one in kept]
        assert [record.iteration for record in self.observer.iterations] == list(range(len(kept)))
        figures = [live.view.figures(), reported.figures, stored.figures]
        names = [name for name in JobFigures.__dataclass_fields__ if name not in ("workers", "verdicts")]
        return len(kept), [{name: getattr(one, name) for name in names} for one in figures], live.behind


@pytest.fixture
def rewound(tmp_path):
    """A job whose records the manager has written at once."""
    service = ManagerService(ManagerConfig(job=JobConfig(workers=1), state=tmp_path))
    with serving(service) as address, contextlib.closing(Rewound(address, tmp_path)) as job:
        yield job


@pytest.mark.slow
@pytest.mark.parametrize("polled", [True, False])
@pytest.mark.parametrize(
    ("back", "again", "left"),
    [(4, 3, 7), (4, 9, 13), (10, 0, 10), (0, 2, 2)],
)
def test_an_iteration_that_is_computed_twice_counts_once(rewound, wait_until, back, again, left, polled):
    """After ten iterations the job goes back, and does some of them again, or all and more."""
    rewound.train(10)
    rewound.rewind(back)
    rewound.train(again, polled)
    same(rewound, wait_until, left)
    rewound.rewind(left // 2)
    rewound.train(left, polled)
    same(rewound, wait_until, left // 2 + left)


def same(rewound, wait_until, left):
    """Check that all count so many iterations, and agree in all figures."""
    wait_until(
        lambda: stored(rewound) == (left, rewound.attempt if left else None), "the state to be written"
    )
    count, (live, *others), behind = rewound.counts()
    assert (count, behind) == (left, 0)
    assert (live["iterations"], live["samples"]) == (left, 10 * left)
    for other in others:
        assert other == pytest.approx(live, abs=1e-12)


def stored(rewound):
    """Return how many iterations are in the state, and the job's attempt there."""
    with open_state(rewound.folder) as reader:
        (run,) = reader.runs(JOB)
        return len(reader.records(run.run, 0, 1000)), run.state.attempt
