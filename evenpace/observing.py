"""Metrics and traces of a service or a worker. Libraries for them are imported only when they are used."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from idl.errors import InvalidRequestError
from idl.settings import Checked, Setting
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.server import Security, Server

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from batchsize_manager.partitions.service import DataPartitionService
    from batchsize_manager.service import ManagerService
    from evenpace.tracing.tracer import Tracer
    from ps.service import ParameterServerService
    from worker.session import Session

Beside = Callable[[Server], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Observing(Checked):
    """Options of metrics and traces (InvalidRequestError: a value is not allowed)."""

    metrics: Annotated[
        Address | None,
        Setting("Let Prometheus scrape metrics here, over TLS if --tls is given."),
    ] = None
    metrics_workers: Annotated[
        int,
        Setting("With --metrics: most workers of a job that have metrics of their own.", least=0),
    ] = 64
    traces: Annotated[
        str | None,
        Setting(
            "Send traces of iterations to this OpenTelemetry collector (OTLP over HTTP), as in "
            "http://127.0.0.1:4318; needs evenpace[traces].",
            metavar="URL",
        ),
    ] = None
    trace_every: Annotated[
        int,
        Setting("With --traces: trace one in this many iterations; the same in all processes.", least=1),
    ] = 100

    def check(self, security: Security) -> None:
        """Check that a service may expose its metrics at that address.

        Raises:
            InvalidRequestError: Other machines could read them without TLS and a token.
        """
        if self.metrics is not None:
            security.check_address(self.metrics)

    def check_worker(self, credentials: Credentials | None, *, insecure: bool) -> None:
        """Check that a worker may expose its metrics at that address; TLS readers need a certificate.

        Raises:
            InvalidRequestError: Other machines could read them without TLS.
        """
        tls = credentials is not None and credentials.tls
        if self.metrics is not None and not (tls or insecure or self.metrics.is_loopback):
            raise InvalidRequestError(
                f"others could read metrics at {self.metrics} without TLS: give --tls, listen on 127.0.0.1, "
                f"or say --insecure if the network is trusted"
            )

    def manager(self, service: "ManagerService") -> Beside:
        """Return a function that opens metrics and traces beside a manager's server."""

        def collector(server: Server) -> "Collector":
            from evenpace.metrics.manager import manager_collector

            return manager_collector(service, server, self.metrics_workers)

        def trace(tracer: "Tracer") -> None:
            from evenpace.tracing.manager import RoundTracer

            service.on_event = RoundTracer(tracer)

        return partial(self._service, "manager", collector, trace)

    def shard(self, service: "ParameterServerService") -> Beside:
        """Return a function that opens metrics and traces beside a shard's server."""

        def collector(server: Server) -> "Collector":
            from evenpace.metrics.shard import shard_collector

            return shard_collector(service, server)

        def trace(tracer: "Tracer") -> None:
            from evenpace.tracing.shard import ShardTracer

            service.observer = ShardTracer(tracer)

        return partial(self._service, "ps", collector, trace)

    def partitions(self, service: "DataPartitionService") -> Beside:
        """Return a function that opens metrics beside a DataPartitionManager's server."""

        def collector(server: Server) -> "Collector":
            from evenpace.metrics.partitions import partitions_collector

            return partitions_collector(service, server)

        return partial(self._service, "partitions", collector, lambda tracer: None)

    @contextlib.contextmanager
    def worker(self, session: "Session") -> Iterator[None]:
        """Run metrics and traces beside a worker while the block runs.

        Raises:
            AddressInUseError: Something listens at `metrics` already.
        """
        with contextlib.ExitStack() as stack:
            if self.metrics is not None:
                with _needs("metrics", "manager"):
                    from evenpace.metrics.endpoint import exposed
                    from evenpace.metrics.worker import session_collector
                collector = session_collector(session)
                stack.enter_context(exposed(self.metrics, collector, session.config.credentials))
            if self.traces is not None:
                tracer = stack.enter_context(self._tracer("worker", session.config.worker))
                from evenpace.tracing.worker import SessionTracer

                session.meter.tally.observer = SessionTracer(tracer, session)
            yield

    @contextlib.contextmanager
    def _service(
        self,
        part: str,
        collector: Callable[[Server], "Collector"],
        trace: Callable[["Tracer"], None],
        server: Server,
    ) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.metrics is not None:
                from evenpace.metrics.endpoint import exposed

                credentials = server.security.credentials
                stack.enter_context(exposed(self.metrics, collector(server), credentials))
            if self.traces is not None:
                trace(stack.enter_context(self._tracer(part, uuid.uuid4().hex)))
            yield

    @contextlib.contextmanager
    def _tracer(self, part: str, instance: str) -> Iterator["Tracer"]:
        assert self.traces is not None
        with _needs("traces", "traces"):
            from evenpace.tracing.tracer import Tracer
        tracer = Tracer(self.traces, self.trace_every, part, instance)
        try:
            yield tracer
        finally:
            tracer.close()


@contextlib.contextmanager
def _needs(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import into an error that says which extra to install."""
    try:
        yield
    except ImportError as error:
        raise InvalidRequestError(
            f"{what} need more than is installed ({error}): pip install 'evenpace[{extra}]'"
        ) from error
