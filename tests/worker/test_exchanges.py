"""Sessions with an exchange of another kind than ours: all that they need is its protocol."""

import contextlib

import numpy as np
import pytest

from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from rpc.address import Address
from tests.scripts.train_least_squares import RATE, go_through, trained_alone
from tests.services import in_threads
from tests.worker.least_squares import services, slices_follow_each_other
from tests.worker.memory_exchange import Memory, MemoryExchange
from worker.exchanges.all_reduce import AllReduce
from worker.exchanges.parameter_server import ParameterServer
from worker.session import Session, SessionConfig


def train(manager, lengths):
    """Train with workers that leave after so many iterations each; return their parts and sessions."""
    memory = Memory(RATE)
    sessions = [
        Session(SessionConfig(manager, worker=f"w{number}"), MemoryExchange(memory))
        for number in range(len(lengths))
    ]
    parts = [[] for _ in lengths]

    def work(number):
        with contextlib.closing(sessions[number]) as session:
            parts[number].extend(part.assignment for part in go_through(session, lengths[number]))

    in_threads(*(lambda number=number: work(number) for number in range(len(lengths))))
    return parts, sessions, memory


@pytest.mark.parametrize("lookahead", [0, 2])
def test_workers_train_as_one_process(lookahead):
    """Three workers' steps are those of whole batches, and all exchanges are closed."""
    with services(3, lookahead=lookahead) as (manager, _):
        parts, sessions, memory = train(manager, [40, 40, 40])
    assert np.abs(memory.versions[40] - trained_alone(40)).max() < 1e-12
    for iteration in range(40):
        assert slices_follow_each_other([part[iteration] for part in parts], iteration)
    assert all(session.exchange.closed for session in sessions)


def test_parts_of_who_leaves_are_contributed_by_others():
    """A worker that leaves amid an iteration has the others contribute its part, with the same parameters."""
    with services(2) as (manager, _):
        parts, sessions, memory = train(manager, [30, 12])
    assert np.abs(memory.versions[30] - trained_alone(30)).max() < 1e-12
    assert sessions[0].meter.tally.pieces == 1
    assert [part.iteration for part in parts[0]] == [*range(13), *range(12, 30)]


def test_what_a_step_takes_counts_with_the_next_batch_where_reports_are_sent_ahead():
    """Each step takes 100 s more by the stopwatch; the first batch has none before it."""

    def step(session):
        session.report_ahead()
        session.meter.stopwatch.exclude(-100.0)
        session.report_ahead()  # as in a second step with the same batch

    with services(1) as (manager, _):
        session = Session(SessionConfig(manager, worker="w"), MemoryExchange(Memory(RATE)))
        with contextlib.closing(session):
            parts = [part.assignment.iteration for part in go_through(session, 4, step)]
            with ManagerClient(manager) as client:
                records = client.history("default", 0)[1]
    assert parts == [0, 1, 2, 3]
    assert [record.parts["w"].batch_processing_time // 100 for record in records] == [0, 1, 1, 1]


def test_adapters_ask_for_the_exchange_that_they_need():
    """What is meant for another exchange is refused, with the reason."""
    with contextlib.closing(Session(SessionConfig(Address("127.0.0.1", 1)))) as session:
        assert AllReduce.of(session.exchange, "unused") is session.exchange
        with pytest.raises(InvalidRequestError, match="no parameter server: name one with `ps`"):
            ParameterServer.of(session.exchange)
    with pytest.raises(InvalidRequestError, match="the reason"):
        AllReduce.of(MemoryExchange(Memory(RATE)), "the reason")
