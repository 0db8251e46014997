"""The faults of `evenpace lab chaos`, each on real processes, sockets, file systems and clocks."""

import contextlib
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from batchsize_manager.client import ManagerClient
from evenpace.local import cluster
from lab.chaos import clocks, witness
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.config import ChaosConfig
from lab.chaos.errors import NotPossibleHereError
from lab.chaos.fault_schedule import Fault
from lab.chaos.injections import (
    BlackHole,
    Drain,
    Freeze,
    FreezeUntilOut,
    HalfOpen,
    Impostor,
    Join,
    Kill,
    LinkCut,
    Slow,
    clock_jump,
    foreign_state,
)
from lab.chaos.rank_links import Apart, Ear
from lab.chaos.reference_training import SPEC
from lab.chaos.storm import Storm
from lab.chaos.supervisor import Supervisor
from lab.network import WorkerNetwork
from lab.proxy import Proxy
from rpc.address import Address
from rpc.processes import Process, state

ECHO = """
import socket
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
peer, _ = server.accept()
while data := peer.recv(100):
    peer.sendall(data)
"""
ASK = """
import socket, sys
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 120)
for line in sys.stdin:
    peer.sendall(line.encode())
    print(peer.recv(100).decode(), end="", flush=True)
"""
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


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


@pytest.fixture
def supervised(tmp_path):
    """A supervisor of one process that sleeps."""
    process = Process("w0", SLEEP, tmp_path / "w0.log")
    supervisor = Supervisor({"w0": process}, random.Random(0), {"w0"})
    supervisor.poll()
    yield supervisor
    supervisor.stop("worker")


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


def test_a_killed_process_is_started_again(supervised, wait_until):
    """The supervisor starts it again, and notes the end of a process that was not killed."""
    process = supervised.processes["w0"]
    first = process.pid
    kill = Kill(fault("kill"), supervised, "w0")
    assert f"process {first} ended with status -9" in wait_until(kill.fired, "the end of the process")
    wait_until(lambda: supervised.poll() or process.pid != first, "its next start")
    assert supervised.endings == []
    os.kill(process.pid, signal.SIGTERM)
    wait_until(lambda: supervised.poll() or supervised.endings, "the end of the process")
    assert supervised.endings[0].code == -signal.SIGTERM
    assert supervised.endings[0].name == "w0"


def test_a_guest_joins_and_leaves(supervised, tmp_path, wait_until):
    """There is evidence once it trains; it is not started again after it was told to leave."""
    guest = supervised.processes["guest0"] = Process("guest0", SLEEP, tmp_path / "guest0.log")
    trains = []
    join = Join(supervised, "guest0", trains.__contains__)
    assert join.fired() is None
    supervised.poll()
    assert join.fired() is None
    trains.append(guest)
    assert join.fired() == f"process {guest.pid} trains"
    join.lift()
    wait_until(lambda: supervised.poll() or not guest.running, "its end")
    supervised.poll()
    assert (guest.starts, supervised.endings) == (1, [])


def test_a_drained_worker_ends_and_comes_back(supervised, tmp_path, wait_until):
    """The manager is asked until the worker has ended, and well."""
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit()); print(1, flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; time.sleep(600)"]
    worker = supervised.processes["w1"] = Process("w1", command, tmp_path / "w1.log")
    supervised.wanted.add("w1")
    supervised.poll()
    wait_until(worker.tail, "its start")
    asked = []

    def drain(name):
        asked.append(name)
        if len(asked) == 2:
            os.kill(worker.pid, signal.SIGTERM)

    pid = worker.pid
    drained = Drain(fault("drain"), supervised, "w1", drain)
    assert wait_until(drained.fired, "its end") == f"process {pid} ended with status 0"
    assert set(asked) == {"w1"}
    wait_until(lambda: supervised.poll() or worker.starts == 2, "its next start")
    assert supervised.endings == []


def test_a_frozen_process_is_seen_stopped(supervised, wait_until):
    """The kernel says that it is stopped; it goes on afterwards, and killing it before does no harm."""
    process = supervised.processes["w0"]
    freeze = Freeze(process)
    assert "has state T" in freeze.fired()
    freeze.lift()
    wait_until(lambda: state(process.pid) in "RS", "its going on")
    freeze = Freeze(process)
    kill = Kill(fault("kill"), supervised, "w0")
    wait_until(kill.fired, "the end of the process")
    freeze.lift()
    assert state(kill._popen.pid) == ""


def test_a_worker_is_frozen_until_the_manager_says_that_it_is_out(supervised, wait_until):
    """A stopped process is no evidence that its worker is out."""
    said = []
    freeze = FreezeUntilOut(supervised.processes["w0"], lambda name: said[-1] if said else None)
    assert state(supervised.processes["w0"].pid) == "T"
    assert freeze.fired() is None
    said.append("working")
    assert freeze.fired() is None
    said.append("silent")
    assert freeze.fired().endswith("has state T in /proc; to the manager it is silent")
    freeze.lift()
    wait_until(lambda: state(supervised.processes["w0"].pid) in "RS", "its going on")


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
        assert manager.running
        assert shard.running
        assert held == {name: sorted(folders[name].iterdir()) for name in held}


def test_a_link_is_cut(proxy, connection):
    """Connections are cut at once, and new ones are refused until the fault ends."""
    link = proxy.links["w0>echo"]
    cut = LinkCut(fault("cut", amount=0.1), proxy, link)
    assert cut.fired() == "1 connections reset"
    assert is_broken(connection)
    with socket.create_connection(link.address, timeout=120) as refused:
        assert is_broken(refused)
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


def test_a_stalled_link_holds_bytes_back(proxy, connection, wait_until):
    """Nothing is lost, and nothing passes before it ends."""
    stall = Slow(fault("stall"), proxy, proxy.links["w0>echo"], stall=True)
    assert stall.fired() is None
    connection.sendall(b"x" * 1000)
    assert wait_until(stall.fired, "bytes that wait") == "1000 bytes stalled"
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(100)
    stall.lift()
    connection.settimeout(120)
    assert len(connection.recv(1000, socket.MSG_WAITALL)) == 1000


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


def test_a_link_of_limited_bandwidth_takes_its_time(echo):
    """Limited bandwidth is no evidence of a fault; a throttle goes below it."""
    with Proxy(100_000.0) as proxy:
        proxy.add("w0>echo", echo)
        link = proxy.links["w0>echo"]
        with (
            socket.create_connection(link.address, timeout=120) as connection,
            connection.makefile("rb") as stream,
        ):
            began = time.monotonic()
            connection.sendall(b"x" * 40_000)
            assert len(stream.read(40_000)) == 40_000
            assert time.monotonic() - began > 40_000 / 100_000
            assert link.held == 0
            slow = Slow(fault("throttle", amount=0.0), proxy, link, stall=False)
            began = time.monotonic()
            connection.sendall(b"x" * 400)
            assert len(stream.read(400)) == 400
            assert time.monotonic() - began > 400 / 2000
            assert "bytes at 2000 bytes/s" in slow.fired()
            slow.lift()


def test_a_link_becomes_a_black_hole(proxy, connection, wait_until):
    """Bytes are lost on old and new connections, which stay dead; later connections work."""
    link = proxy.links["w0>echo"]
    hole = BlackHole(proxy, link)
    assert (hole.fired(), hole.moot) == (None, True)
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


def test_packets_between_two_places_are_lost_(needs_network):
    """Both ways, and without an error at either end; what was sent arrives when it is over."""
    with WorkerNetwork(2) as net, contextlib.ExitStack() as stack:
        try:
            ears = [Ear(net.address(place), net.prefix(place)) for place in range(2)]
        except NotPossibleHereError as error:
            pytest.skip(str(error))
        line = [*net.prefix(1), sys.executable, "-c", ECHO]
        server = stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        port = server.stdout.readline().strip()
        line = [*net.prefix(0), sys.executable, "-c", ASK, net.address(1), port]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        client = stack.enter_context(subprocess.Popen(line, **pipes))

        def send(word):
            client.stdin.write(f"{word}\n")
            client.stdin.flush()

        send("before")
        assert client.stdout.readline() == "before\n"
        apart = Apart({"w0": ears[0]}, {"w1": ears[1]})
        assert (apart.fired(), apart.moot) == (None, True)
        send("meanwhile")
        while (said := apart.fired()) is None:
            time.sleep(0.05)
        assert re.fullmatch(r"\d+ packets lost", said)
        assert not apart.moot
        assert select.select([client.stdout], [], [], 1.0)[0] == []
        apart.lift()
        assert client.stdout.readline() == "meanwhile\n"
        client.stdin.close()


@pytest.mark.ci
def test_a_clock_jumps_for_one_process(tmp_path, wait_until):
    """The process's own wall clock jumps, as it says itself, and back."""
    try:
        library = clocks.find_library()
    except NotPossibleHereError as error:
        pytest.skip(str(error))
    offset, told = tmp_path / "w0.offset", tmp_path / "w0.clock"
    clocks.set_offset(offset, 0)
    service = ("manager", "--listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "lab.chaos.witness", str(told), *service]
    environment = clocks.environment(library, offset)
    with Process("w0", command, tmp_path / "w0.log", "manager", environment) as process:
        pid, _ = wait_until(lambda: witness.read(told), "its first words")
        assert not list(Path("/dev/shm").glob(f"*faketime*_{pid}"))  # which a kill would leave behind
        jump = clock_jump(fault("clock", amount=-86400.0), process)
        assert wait_until(jump.fired, "the jump").startswith("its clock is -86")
        jump.lift()
        wait_until(lambda: abs(witness.read(told)[1] - time.time()) < 5, "the jump back")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "expected"), [("batch-size", "changed the batch size"), ("bounds", "given w0")]
)
def test_an_operator_changes_batches(tmp_path, wait_until, kind, expected):
    """The manager's answer is the evidence; bounds are lifted at the end, and a size stays."""
    (tmp_path / "cluster").mkdir()
    settings = ChaosConfig(1, 0, (kind,), workers=1, shards=1, link_mib=100.0)
    with ChaosCluster(settings, tmp_path / "cluster") as chaos:
        name = "w0"
        supervisor, storm = chaos.supervisor, Storm(chaos, iter(()), tmp_path / "faults")
        supervisor.poll()
        wait_until(chaos.listening, "the services")
        chaos.start_workers()
        wait_until(lambda: supervisor.poll() or chaos.trains(supervisor.processes[name]), "training")
        order = storm._inject(Fault(0, 0.0, kind, (name,), 1.0, 0.5), name)

        def in_force():
            with ManagerClient(chaos.manager) as manager:
                status = manager.status("job-0")
            (member,) = status.members
            return status.summary.batch_size, member.bounds.minimum, member.bounds.maximum

        before = in_force()
        assert before[:2] == (SPEC.total_batch_size, 1)
        assert expected in wait_until(order.fired, "the answer")
        after = in_force()
        assert after == ((120, *before[1:]) if kind == "batch-size" else (before[0], 24, 289))
        time.sleep(1.1)  # the manager is asked about a worker once in a second
        order.lift()
        assert in_force() == (after if kind == "batch-size" else before)


def test_a_disk_is_filled_up_and_leaves_nothing(tmp_path):
    """Not a byte can be written until it is cleared; no mount of it stays."""
    code = f"""
import errno, pathlib
from lab.chaos import disks
from lab.chaos.errors import NotPossibleHereError
try:
    disks.private_mounts()
    disk = disks.make_disk("ps-0", pathlib.Path({str(tmp_path / "disk")!r}))
except NotPossibleHereError as error:
    print("skip", error)
    raise SystemExit
print(disk.fill())
try:
    (disk.path / "other").write_text("x")
except OSError as error:
    assert error.errno == errno.ENOSPC
else:
    raise AssertionError("there was room")
disk.clear()
(disk.path / "other").write_text("x")
assert str(disk.path) in open("/proc/self/mounts").read()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    if done.stdout.startswith("skip"):
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert list((tmp_path / "disk").iterdir()) == []


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
