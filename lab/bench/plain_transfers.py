"""A shard's work done in straightforward ways: by bare sockets, and by thriftpy2's binary argument."""

import socket
import sys
from typing import Any

import torch

import idl
from lab.bench import threaded_server as threaded

_PIECE = 2**18  # bytes, as in ps.shard
WEIGHT = 0.5
PUSH, PULL = b"<", b">"

_wire = idl.parameter_server


def serve_sockets(nbytes: int) -> None:
    """Serve one connection: add a weighted gradient and answer one byte, or send the parameters."""
    total = torch.zeros(nbytes // 4)
    parameters = memoryview(bytearray(nbytes))
    buffer = bytearray(_PIECE)
    view, piece = memoryview(buffer), torch.frombuffer(buffer, dtype=torch.float32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threaded.announce(listener.getsockname()[1])
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while command := connection.recv(1):
            if command == PULL:
                connection.sendall(parameters)
                continue
            done = 0
            while done < nbytes:
                filled, wanted = 0, min(_PIECE, nbytes - done)
                while filled < wanted:
                    filled += connection.recv_into(view[filled:wanted])
                total[done // 4 : (done + wanted) // 4].add_(piece[: wanted // 4], alpha=WEIGHT)
                done += wanted
            connection.sendall(command)


class _Handler:
    def __init__(self, nbytes: int) -> None:
        self._total = torch.zeros(nbytes // 4)
        self._parameters = bytes(nbytes)

    def push(self, request: Any, gradient: bytes) -> Any:
        """Handle the call of the same name in parameter_server.thrift."""
        self._total.add_(torch.frombuffer(bytearray(gradient), dtype=torch.float32), alpha=WEIGHT)
        return _wire.PushReply(identity=request.identity, iteration=request.assignment.iteration)

    def pull(self, request: Any) -> Any:
        """Handle the call of the same name in parameter_server.thrift."""
        return _wire.PullReply(identity=request.identity, version=0, waited=0.0, parameters=self._parameters)


def serve_thriftpy2(nbytes: int) -> None:
    """Serve the same calls as the real shard, by thriftpy2's own server."""
    threaded.serve(_wire.ParameterServer, _Handler(nbytes))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"sockets": serve_sockets, "thriftpy2": serve_thriftpy2}[sys.argv[1]](int(sys.argv[2]))
