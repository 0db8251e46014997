"""The faults of `evenpace lab chaos`, each on real processes, sockets, file systems and clocks."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from evenpace.local import cluster
from lab.chaos.fault_schedule import Fault
from lab.chaos.injections import (
    BlackHole,
    HalfOpen,
    Impostor,
    LinkCut,
    foreign_state,
)
from lab.proxy import Proxy
from rpc.address import Address
from rpc.processes import Process


@pytest.fixture
def echo():
    """A service that sends back whatever comes."""

    def serve(connection):
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield Address(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo):
    """A proxy with a link to it."""
    with Proxy() as proxy:
        proxy.add("w0>echo", echo)
        yield proxy


@pytest.fixture
def connection(proxy):
    """Through the proxy; something has come back already."""
    with socket.create_connection(proxy.links["w0>echo"].address, timeout=120) as connection:
        connection.sendall(b"first")
        assert connection.recv(100) == b"first"
        yield connection


def fault(kind, seconds=0.0, amount=0.0):
    """Make a fault of a kind."""
    return Fault(0, 0.0, kind, ("w0",), seconds, amount)


def is_broken(connection):
    """Return whether a connection has ended, by a reset or a close."""
    try:
        return connection.recv(100) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


@pytest.mark.ci
def test_a_service_with_the_folder_of_another_is_refused(tmp_path, wait_until):
    """The error names folder and owner, be it another's or the service's own; nothing is written there."""
    folders = {name: tmp_path / name for name in ("manager", "ps-0", "ps-1")}

    def service(name):
        command = ["manager" if name == "manager" else "ps", "--listen", "127.0.0.1:0"]
        line = [sys.executable, "-m", "evenpace", *command, "--state", str(folders[name])]
        return Process(name, line, tmp_path / f"{name}.log")

    manager, shard, other = map(service, folders)
    with manager, shard:
        for process in (manager, shard):
            wait_until(lambda process=process: "listening" in process.log.read_text(), "its start")
        held = {name: sorted(folder.iterdir()) for name, folder in folders.items() if folder.exists()}
        for process, owner, said in [
            (manager, "ps-0", "ps-0 is the folder of a shard of the parameter server"),
            (shard, "manager", "manager is the folder of a manager"),
            (other, "ps-0", "ps-0 is in use by another shard"),
        ]:
            foreign = foreign_state(process, folders[owner])
            assert said in wait_until(foreign.fired, "the refusal")
            foreign.lift()
        impostor = Impostor(manager)
        refusal = wait_until(impostor.fired, "the refusal")
        assert f"is in use by another manager, process {manager.pid}" in refusal
        assert manager.is_running
        assert shard.is_running
        assert held == {name: sorted(folders[name].iterdir()) for name in held}


def test_a_link_is_cut(proxy, connection):
    """Connections are cut at once, and new ones are refused until the fault ends."""
    link = proxy.links["w0>echo"]
    cut = LinkCut(fault("cut", amount=0.1), proxy, link)
    assert cut.fired() == "1 connections reset"
    assert is_broken(connection)
    with socket.create_connection(link.address, timeout=120) as refused:
        assert is_broken(refused)
    assert cut.fired() == "1 connections refused"
    cut.lift()
    with socket.create_connection(link.address, timeout=120) as again:
        again.sendall(b"again")
        assert again.recv(100) == b"again"


def test_a_link_is_cut_within_a_message(proxy, connection, wait_until):
    """Half of it arrives at most."""
    cut = LinkCut(fault("cut", amount=0.9), proxy, proxy.links["w0>echo"])
    assert cut.fired() is None
    connection.sendall(b"x" * 1000)
    assert wait_until(cut.fired, "the cut") == "connections reset within a message"
    assert is_broken(connection)
    cut.lift()


@pytest.mark.parametrize("near_ends", [True, False])
def test_a_half_open_link_tells_one_side_only(proxy, connection, near_ends):
    """The other side waits in vain until it ends."""
    half = HalfOpen(fault("half-open", amount=float(near_ends)), proxy, proxy.links["w0>echo"])
    assert "1 connections reset on" in half.fired()
    if near_ends:
        assert is_broken(connection)
    else:
        connection.settimeout(0.2)
        assert not is_broken(connection)
        connection.sendall(b"into the void")
        assert not is_broken(connection)
        half.lift()
        connection.settimeout(120)
        assert is_broken(connection)
    half.lift()


def test_a_link_becomes_a_black_hole(proxy, connection, wait_until):
    """Bytes are lost on old and new connections, which stay dead; later connections work."""
    link = proxy.links["w0>echo"]
    hole = BlackHole(proxy, link)
    assert (hole.fired(), hole.is_moot) == (None, True)
    with socket.create_connection(link.address, timeout=120) as new:
        for sent in (connection, new):
            lost = link.lost
            sent.sendall(b"x" * 1000)
            wait_until(lambda lost=lost: link.lost == lost + 1000, "the loss")
        assert hole.fired() == "1 connections fell silent, 2000 bytes lost"
        hole.lift()
        for dead in (connection, new):
            dead.sendall(b"again")
            dead.settimeout(0.2)
            assert not is_broken(dead)
        with socket.create_connection(link.address, timeout=120) as again:
            again.sendall(b"again")
            assert again.recv(100) == b"again"


@pytest.mark.ci
def test_a_run_that_cannot_begin_leaves_no_disk(tmp_path):
    """Where clocks cannot be made to jump, but must, the disks that were made before are removed."""
    code = """
from lab.chaos import clocks
from lab.chaos.chaos_run import run
from lab.chaos.config import ChaosConfig
from lab.chaos.errors import NotPossibleHereError
clocks._PLACES = ()
try:
    run(ChaosConfig(1, 0, ("disk", "clock")), None)
except NotPossibleHereError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    if done.stdout.startswith("faults disk:"):
        pytest.skip(done.stdout)
    assert done.stdout.startswith("faults clock: no libfaketime here")
    assert list(tmp_path.iterdir()) == []


def test_ports_are_not_the_kernels_to_give():
    """A service that comes back finds its port free: no outgoing connection can have it, nor another run."""
    ports = cluster.free_ports(50)
    assert ports != cluster.free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < int(cluster._EPHEMERAL.read_text().split()[0])
