"""thriftpy2's own TThreadedServer, a thread for each connection: what the benchmarks compare with."""

import os
import sys
from types import ModuleType
from typing import Any, cast

from thriftpy2.protocol import TCyBinaryProtocolFactory
from thriftpy2.server import TThreadedServer
from thriftpy2.thrift import TProcessor
from thriftpy2.transport import TCyFramedTransportFactory, TServerSocket

from rpc.processes import LISTENING
from worker.parent import end_with_parent


def announce(port: int) -> None:
    """Print the port on which this process listens, for `local.cluster.service`, and end with that."""
    end_with_parent(os.getppid())
    sys.stdout.write(f"{LISTENING}127.0.0.1:{port}\n")
    sys.stdout.flush()


def serve(definition: type, handler: Any) -> None:
    """Serve on a free port of loopback until the process ends."""
    transport = TServerSocket("127.0.0.1", 0, backlog=4096, client_timeout=None)
    transport.listen()
    assert transport.sock is not None
    announce(transport.sock.getsockname()[1])
    transport.listen = lambda: None  # type: ignore[method-assign]  # it listens already, for its port
    TThreadedServer(
        TProcessor(cast(ModuleType, definition), handler),
        transport,
        iprot_factory=TCyBinaryProtocolFactory(),
        itrans_factory=TCyFramedTransportFactory(),
        daemon=True,
    ).serve()
