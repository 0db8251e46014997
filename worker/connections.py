"""A session's connections as its settings say: its client of the manager, and its exchange of gradients."""

import idl
from rpc.client import Client
from rpc.field_log import FieldLog
from rpc.places import Where
from worker.config import SessionConfig
from worker.exchanges.all_reduce import AllReduce
from worker.exchanges.base import Exchange
from worker.exchanges.parameter_server import ParameterServer
from worker.gradient_norms import OwnNorms
from worker.meter import Meter
from worker.shard_clients import ShardClients
from worker.weights import Weights


def make_manager_client(config: SessionConfig, log: FieldLog) -> Client:
    """Make a client of the manager that a session's settings name; it does not connect yet."""
    manager = idl.batchsize_manager.BatchSizeManager
    return _make_client(config, manager, config.manager, "BatchSizeManager", log)


def make_exchange(
    config: SessionConfig, norms: OwnNorms, meter: Meter, weights: Weights, log: FieldLog
) -> Exchange:
    """Make the exchange with the parameter server that a session's settings name; without one, an all-reduce.

    Args:
        meter: Measures transfers.
        weights: What this worker's gradients are means over.
        log: A logger whose fields all log lines get.
    """
    if not config.shards:
        return AllReduce()
    server = idl.parameter_server.ParameterServer
    clients = [_make_client(config, server, at, "parameter server", log) for at in config.shards]
    shards = ShardClients(clients, config.barrier_timeout, config.push_dtype)
    return ParameterServer(shards, norms, meter, weights, config.barrier_timeout, log)


def _make_client(config: SessionConfig, definition: type, where: Where, name: str, log: FieldLog) -> Client:
    return Client(
        definition,
        where,
        name,
        connect_timeout=config.connect_timeout,
        call_timeout=config.barrier_timeout,
        credentials=config.credentials,
        silence=config.silence,
        log=log,
    )
