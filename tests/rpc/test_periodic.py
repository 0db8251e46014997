"""Deadlines that are kept although other work fails."""

import contextlib
import logging
import shutil
import socket

import pytest

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.service import ManagerConfig, ManagerService
from ps import jobs
from rpc.client import Client
from rpc.limits import ServerLimits
from rpc.peer import Peer
from rpc.periodic import Periodic
from tests.services import join_request, serving, shard_service


def test_a_failure_is_told_once_until_a_round_succeeds(caplog):
    """A failure is logged once until a round succeeds, and once more when it fails again."""
    caplog.set_level(logging.INFO)
    work = Periodic("sweeping")
    for fails in (True, True, False, False, True):
        with work:
            if fails:
                raise OSError("there is no floor")
    told = [record.getMessage() for record in caplog.records]
    failed = "sweeping failed; it is tried again"
    assert told == [failed, "sweeping succeeds again", failed]
    assert "there is no floor" in caplog.text


def test_who_wants_to_end_is_let():
    """An interruption of the process is not swallowed as a failure."""
    with pytest.raises(KeyboardInterrupt), Periodic("sweeping"):
        raise KeyboardInterrupt


def test_a_shard_without_its_folder_keeps_its_deadlines(tmp_path, caplog, wait_until, monkeypatch):
    """Silent peers are cut off although the folder of old jobs cannot be read any more."""
    monkeypatch.setattr(jobs, "_SWEEP_SECONDS", 0.0)
    with serving(
        shard_service(state=tmp_path / "state", keep=0.1), ServerLimits(handshake_timeout=0.5)
    ) as address:
        shutil.rmtree(tmp_path / "state")
        wait_until(lambda: "removing old jobs from the folder failed" in caplog.text, "the failure")
        with Client(idl.parameter_server.ParameterServer, address, "shard").connect() as silent:
            silent.settimeout(240)
            while silent.recv(4096):
                pass
    assert caplog.text.count("removing old jobs from the folder failed") == 1


def test_a_job_that_fails_leaves_the_others_their_deadlines(monkeypatch, wait_until):
    """When one job's deadlines cannot be checked, a silent member of another is still removed."""
    tick, broken = Job.tick, 12345  # the size of the data set

    def fail(job, now):
        if job.spec.dataset_size == broken:
            raise RuntimeError("a broken policy")
        tick(job, now)

    monkeypatch.setattr(Job, "tick", fail)
    service = ManagerService(ManagerConfig(job=JobConfig(reconnect_grace=0.1, keep=0.0)))
    with serving(service) as address:
        for name, size in (("first", broken), ("second", 1000)):
            client = Client(idl.batchsize_manager.BatchSizeManager, address, "manager")
            client.call("join", join_request(idl.common.Identity(name, "w", "i"), dataset_size=size))
            client.close()
        wait_until(lambda: [job.name for job in service.jobs] == ["first"], "the end of the second job")


def test_a_connection_that_fails_is_cut_off_and_the_others_keep_their_deadlines(monkeypatch):
    """A connection whose check fails is cut off, and the others are checked, in any order."""
    check, failed = Peer.check_deadlines, []

    def fail(peer, now):
        if not failed:
            failed.append(peer)
        if peer is failed[0]:
            raise RuntimeError("a broken connection")
        check(peer, now)

    monkeypatch.setattr(Peer, "check_deadlines", fail)
    with (
        serving(shard_service(), ServerLimits(handshake_timeout=0.5)) as address,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(2):
            silent = stack.enter_context(socket.create_connection(address))
            silent.settimeout(240)
            with contextlib.suppress(ConnectionResetError):
                while silent.recv(4096):
                    pass
    assert failed
