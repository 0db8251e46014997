"""`lab.proxy`, as far as tests use it: links between workers and services, of simulated threads."""

import math

from tests.simulation.modules import threading
from tests.simulation.network import socket
from tests.simulation.world import World

_CHUNK = 65_536  # bytes
_PIECE_SECONDS = 0.01  # of a link's time, for the bytes that it passes on at once


class ProxyLink:
    """A link: its connections, and how they fail at present.

    Attributes:
        open: Set while bytes are passed on.
        bytes: How many have passed so far.
        rate: Bytes per second of each connection, either way.
        refusing: Whether new connections are refused.
        swallowing: Whether new connections are never answered.
    """

    def __init__(self, target):
        self._target = target
        self._pairs = []
        self.open = threading.Event()
        self.open.set()
        self.bytes, self.rate = 0, math.inf
        self.refusing = self.swallowing = False

    def cut(self):
        """Break all connections; return their number."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            end.endpoint.reset()
            end.close()
        return len(pairs)

    def swallow(self):
        """Pass on nothing more of any connection, and answer no new one; return the number of connections."""
        self.swallowing = True
        for end in (end for pair in self._pairs for end in pair):
            end.endpoint.is_hole = True
        return len(self._pairs)

    def answer_again(self):
        """Answer new connections."""
        self.swallowing = False

    def serve(self, listener):
        """Take connections."""
        while True:
            near, _ = listener.accept()
            if self.refusing:
                near.endpoint.reset()
                near.close()
                continue
            if self.swallowing:
                near.endpoint.is_hole = True
                continue
            far = socket.create_connection(self._target)
            self._pairs.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink)).start()

    def _carry(self, source, sink):
        try:
            while data := source.recv(max(1, int(min(_CHUNK, self.rate * _PIECE_SECONDS)))):
                self.open.wait()
                World.current.sleep(len(data) / self.rate)
                self.bytes += len(data)
                sink.sendall(data)
        except OSError:
            pass
        source.close()
        sink.close()


class Proxy:
    """`lab.proxy.Proxy`."""

    def __init__(self):
        self.links = {}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for link in self.links.values():
            link.cut()

    def add(self, name, target):
        """Make a link; return the address on which it listens."""
        link = self.links[name] = ProxyLink(target)
        listener = socket.create_server((target.host, 0))
        process = World.current.process(f"link {name}")
        World.current.spawn(process, lambda: link.serve(listener))
        return type(target)(*listener.getsockname())

    def do(self, action):
        """Call a function."""
        return action()
