"""Network namespaces of our own: reachable, slowed down on demand, and gone afterwards."""

import os
import signal
import socket
import subprocess
import sys
import threading

from lab import network
from lab.network import WorkerNetwork, remove_leftovers
from tests import ROOT

TRANSFER = 500_000  # bytes

SEND = f"""
import socket, sys, time
began = time.monotonic()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 120) as peer:
    peer.sendall(bytes({TRANSFER}))
    peer.shutdown(socket.SHUT_WR)
    assert peer.recv(1) == b""  # the other side has all of it
print(time.monotonic() - began)
"""
HOLD = """
from lab.network import WorkerNetwork
with WorkerNetwork(2):
    print(flush=True)
    input()
"""


def ours(pid):
    """The devices and namespaces of a process."""
    return [name for names in network._existing().values() for name in names if f"ep{pid:06x}" in name]


def send_seconds(net, place):
    """Return the seconds that a process in a place takes to send data to the host; more on a busy machine."""
    received = []

    def receive(server):
        peer, _ = server.accept()
        with peer:
            peer.settimeout(120)
            while piece := peer.recv(65_536):
                received.append(len(piece))

    with socket.create_server((net.host, 0)) as server:
        server.settimeout(120)
        thread = threading.Thread(target=receive, args=(server,))
        thread.start()
        line = [*net.prefix(place), sys.executable, "-c", SEND, net.host, str(server.getsockname()[1])]
        sent = subprocess.run(line, check=True, timeout=240, capture_output=True, text=True)
        thread.join(240)
    assert sum(received) == TRANSFER
    return float(sent.stdout)


def test_a_place_is_slowed_down_alone_and_nothing_stays(needs_network, wait_until):
    """Four megabits at 4 Mbit/s take about a second, in the one place that was limited."""
    with WorkerNetwork(2) as net:
        net.limit(1, 4)
        limited = send_seconds(net, 1)
        assert limited > 0.85  # a second, less what the filter's bucket holds; more if somebody is held up
        wait_until(lambda: send_seconds(net, 0) < limited / 5, "fast transfer from the other place")
        net.limit(1, 1000)
        wait_until(lambda: send_seconds(net, 1) < limited / 5, "fast transfer without the limit")
        assert len(ours(os.getpid())) == 4  # this machine's device, the bridge's namespace, two others

    assert ours(os.getpid()) == []


def test_a_killed_process_leaves_nothing_for_long(needs_network):
    """While it lives its network stays; once it was killed, the next run removes it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        holder.stdout.readline()
        remove_leftovers()
        assert len(ours(holder.pid)) == 4
        with WorkerNetwork(1) as beside:  # two at a time do not meet
            assert beside.host
            assert len(ours(holder.pid)) == 4
        with network._one_at_a_time():  # another process of tests would remove it, too
            holder.send_signal(signal.SIGKILL)
            holder.wait(120)
            assert len(ours(holder.pid)) == 4
        with WorkerNetwork(1):
            assert ours(holder.pid) == []
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
        remove_leftovers()
