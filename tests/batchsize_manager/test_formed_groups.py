"""Groups that a real manager forms, for stock Thrift clients that know the IDL alone."""

import threading

import pytest
import thriftpy2
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory

from tests import ROOT
from tests.services import in_threads, restartable_manager

stock = thriftpy2.load(str(ROOT / "idl" / "batchsize_manager.thrift"), module_name="formed_groups_thrift")
common = stock.common

pytestmark = pytest.mark.usefixtures("time_to_close")


class StockWorker:
    """A worker that counts its steps; the group's members share what they bring through a board."""

    def __init__(self, address, name, board):
        self.identity = common.Identity("j", name, f"{name}-1")
        self.address, self.board = address, board
        self.steps, self.formed, self.attempt, self.group, self.part = 0, None, 0, None, None
        self.client = self.connect()

    def connect(self):
        """Connect."""
        return make_client(
            stock.BatchSizeManager,
            self.address.host,
            self.address.port,
            proto_factory=TBinaryProtocolFactory(),
            trans_factory=TFramedTransportFactory(),
            timeout=60_000,
        )

    def join(self, exchange="formed_group"):
        """Join the job."""
        job = stock.JobSpec(dataset_size=100, total_batch_size=10, seed=1, shuffle=False, drop_last=False)
        bounds = stock.Bounds(minimum=1, maximum=100, granularity=1)
        request = stock.JoinRequest(identity=self.identity, job=job, bounds=bounds, exchange=exchange)
        return self.client.join(request)

    def meet(self, attempt):
        """Go to the rendezvous of an attempt, or of the one after it; return the first assignment."""
        while True:
            request = stock.RewindRequest(identity=self.identity, attempt=attempt, iteration=self.steps)
            request.store, request.formed = f"{self.identity.worker}:29500", self.formed
            reply = self.client.rewind(request)
            if reply.recover is None:
                break
            attempt = reply.recover
        self.attempt, self.group = attempt, reply.group
        steps = self.board.form(attempt, reply.group, self.steps)
        if reply.group.lacks:
            self.steps = steps
        assert self.steps == reply.assignment.iteration
        self.formed = attempt
        return reply.assignment

    def begin(self):
        """Join the job, and its group."""
        self.part = self.meet(self.join().recover)

    def begin_again(self):
        """Connect again, and go on in another group."""
        self.client = self.connect()
        request = stock.RecoverRequest(identity=self.identity, attempt=self.attempt)
        self.part = self.meet(self.client.recover(request).attempt)

    def train(self, size, until):
        """Train until the group has so many members, and they have taken so many steps."""
        while self.group.size < size or self.steps < until:
            assert self.steps == self.part.iteration
            self.steps += 1
            request = stock.ReportRequest(
                identity=self.identity,
                iteration=self.part.iteration,
                batch_processing_time=0.1,
                waiting_time=0.0,
                cpu_usage=0.0,
                memory_usage=0.0,
                attempt=self.part.attempt,
            )
            reply = self.client.report(request)
            self.part = reply.assignment if reply.recover is None else self.meet(reply.recover)


class Board:
    """Where the members of a group meet: a barrier for each attempt, and the source's steps."""

    def __init__(self):
        self._change = threading.Condition()
        self._groups = {}  # attempt to rank to (steps, size, store, source)

    def form(self, attempt, group, steps):
        """Come to a group, wait for the others, and return the steps of the source."""
        facts = group.size, group.store, group.source
        with self._change:
            ranks = self._groups.setdefault(attempt, {})
            assert group.rank not in ranks
            ranks[group.rank] = steps, facts
            self._change.notify_all()
            assert self._change.wait_for(lambda: len(ranks) == group.size, 30)
            assert {known for _, known in ranks.values()} == {facts}
            return ranks[group.source or 0][0]


def test_fewer_steps_than_its_attempt_began_with_are_refused(tmp_path):
    """The job would go back behind what is in that state."""
    board = Board()
    with restartable_manager(tmp_path, "--workers", "1") as manager:
        a, b = (StockWorker(manager.address, name, board) for name in "ab")
        a.begin()
        a.train(1, 4)
        in_threads(lambda: a.train(2, 5), b.begin)
        first = b.steps
        b.steps = first - 1
        said = f"iteration {b.steps}: the state of attempt {b.attempt} has had {first} steps or more"
        with pytest.raises(common.InvalidRequest, match=said):
            b.begin_again()
        for worker in (a, b):
            worker.client.close()


def test_stock_clients_form_groups_through_a_restart_of_the_manager(tmp_path):
    """Two begin, a third takes their state, and after the restart all go on without anybody's."""
    board = Board()
    with restartable_manager(tmp_path, "--workers", "2", "--policy", "even") as manager:
        a, b, c = (StockWorker(manager.address, name, board) for name in "abc")
        with pytest.raises(common.InvalidRequest, match="parameter_server, fixed_group, formed_group"):
            a.join("by mail")
        in_threads(a.begin, b.begin)
        assert (a.group.size, a.group.source, {a.group.lacks, b.group.lacks}) == (2, 0, {None, True})
        with pytest.raises(common.InvalidRequest, match="'formed_group', but 'c' names 'fixed_group'"):
            c.join("fixed_group")
        in_threads(lambda: a.train(3, 6), lambda: b.train(3, 6), lambda: (c.begin(), c.train(3, 6)))
        assert a.steps == b.steps == c.steps >= 6
        assert (c.group.lacks, c.group.source, c.group.store) == (True, 0, a.group.store)
        manager.kill()
        manager.start()
        in_threads(a.begin_again, b.begin_again, c.begin_again)
        assert {worker.group.source for worker in (a, b, c)} == {None}
        until = a.steps + 3
        in_threads(*[lambda w=worker: w.train(3, until) for worker in (a, b, c)])
        assert a.steps == b.steps == c.steps == until
        for worker in (a, b, c):
            worker.client.close()
