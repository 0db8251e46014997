"""A server that runs on each connection a script that the test gives it."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

from thriftpy2.thrift import TMessageType

import idl
from rpc import codec
from rpc.address import Address
from tests.services import ANYWHERE, Raw

_manager = idl.batchsize_manager


@contextlib.contextmanager
def scripted(*scripts: Callable[[Raw], None]) -> Iterator[Address]:
    """Serve one script for each connection, in their order, and then refuse more."""
    with socket.create_server(ANYWHERE) as listener:
        connections: list[Raw] = []

        def run() -> None:
            for script in scripts:
                connection = Raw.__new__(Raw)
                connection.socket, _ = listener.accept()
                connection.socket.settimeout(120)
                connections.append(connection)
                script(connection)
            listener.close()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield Address(*listener.getsockname()[:2])
        finally:
            thread.join(timeout=120)
            for connection in connections:
                connection.socket.close()


def answering(run: str, method: str = "history", skew: int = 0) -> Callable[[Raw], None]:
    """Make a script that answers one call of history, under another name or sequence id where given."""

    def script(raw: Raw) -> None:
        data = raw.read_frame()
        assert data is not None
        header, _ = codec.read_header(data)
        result = _manager.BatchSizeManager.history_result(success=_manager.History(run=run))
        reply = codec.Header(method, TMessageType.REPLY, header.sequence_id + skew)
        raw.send(codec.frame(codec.encode(reply, result)))

    return script
