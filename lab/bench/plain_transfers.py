"""A shard's work done in the straightforward way, by a bare socket, for one worker and so many bytes.

It adds a weighted gradient and answers one byte, or sends the parameters.
"""

import os
import socket
import sys

import torch

from rpc.processes import LISTENING
from worker.parent import end_with_parent

_PIECE = 2**18  # bytes, as in ps.shard
WEIGHT = 0.5
PUSH, PULL = b"<", b">"


def serve(nbytes: int) -> None:
    """Serve one connection, and end with the process that started this one."""
    end_with_parent(os.getppid())
    total = torch.zeros(nbytes // 4)
    parameters = memoryview(bytearray(nbytes))
    buffer = bytearray(_PIECE)
    view, piece = memoryview(buffer), torch.frombuffer(buffer, dtype=torch.float32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sys.stdout.write(f"{LISTENING}127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(int(sys.argv[1]))
