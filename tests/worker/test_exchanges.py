"""Exchanges of a session: what they need of it, and which of them an adapter asks for."""

import contextlib

import pytest
import torch

from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from rpc.address import Address
from tests.worker.least_squares import services
from worker.exchanges.all_reduce import AllReduce
from worker.exchanges.parameter_server import ParameterServer
from worker.session import Session, SessionConfig
from worker.torch.ddp import weighted
from worker.torch.loader import DataLoader


def test_what_a_step_takes_counts_with_the_next_batch_where_reports_are_sent_before_it():
    """Each step takes 100 s more by the stopwatch; the first batch has none before it."""
    with (
        services(1) as (manager, _),
        contextlib.closing(Session(SessionConfig(manager, worker="w"))) as session,
    ):
        for _ in DataLoader(torch.zeros(8, 1), 2, session=session):
            weighted(torch.zeros(()), session=session, ranks=1)
            session.report_before_step()
            session.meter.stopwatch.exclude(-100.0)
            session.report_before_step()  # as in a second step with the same batch
        with ManagerClient(manager) as client:
            records = client.history("default", 0)[1]
    assert [record.parts["w"].batch_processing_time // 100 for record in records] == [0, 1, 1, 1]


def test_adapters_ask_for_the_exchange_that_they_need():
    """What is meant for another exchange is refused, with the reason."""
    nowhere = Address("127.0.0.1", 1)
    with contextlib.closing(Session(SessionConfig(nowhere))) as session:
        assert AllReduce.of(session.exchange, "unused") is session.exchange
        with pytest.raises(InvalidRequestError, match="no parameter server: name one with `ps`"):
            ParameterServer.of(session.exchange)
    with (
        contextlib.closing(Session(SessionConfig(nowhere, (nowhere,)))) as session,
        pytest.raises(InvalidRequestError, match="the reason"),
    ):
        AllReduce.of(session.exchange, "the reason")
