"""A tracer that sends spans to a collector, by OTLP over HTTP, in a thread of its own.

An unreachable collector costs spans, and nothing else: a limited number of them waits to be sent.
"""

import logging
import threading
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from evenpace.tracing.ids import ROUND, Path, TraceKey, span_id, trace_id
from idl.errors import InvalidRequestError
from idl.version import __version__

_WAITING_SPANS = 4096
_BATCH_SPANS = 512
_DELAY_SECONDS = 1.0  # until waiting spans are sent
_SEND_SECONDS = 5.0
_CLOSE_SECONDS = 2.0  # to send the remaining spans
_SILENCE_SECONDS = 60.0  # between two log lines about an unreachable collector
_COMPLAINING = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")


class Tracer:
    """The tracer of one process.

    Args:
        endpoint: URL of the collector; without a path, `/v1/traces` is added.
        every: Number of iterations of which one is traced; the same for all processes of a cluster.
        part: Kind of this process, such as "worker".
        instance: Name of this process among those of its kind.

    Raises:
        InvalidRequestError: The endpoint is no HTTP URL.
    """

    def __init__(self, endpoint: str, every: int, part: str, instance: str) -> None:
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise InvalidRequestError(
                f"traces {endpoint!r}: give an URL, as in http://127.0.0.1:4318, of an OTLP collector"
            )
        if not url.path.strip("/"):
            endpoint = url._replace(path="/v1/traces").geturl()
        self.instance = instance  # name of this process among those of its kind
        self._every = every
        self._ids = _GivenIds()
        self._lock = threading.Lock()
        self._provider = TracerProvider(
            ALWAYS_ON,
            Resource(
                {
                    "service.name": f"evenpace-{part}",
                    "service.instance.id": instance,
                    "service.version": __version__,
                }
            ),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint, timeout=_SEND_SECONDS),
                _WAITING_SPANS,
                _DELAY_SECONDS * 1e3,
                _BATCH_SPANS,
            )
        )
        self._tracer = self._provider.get_tracer("evenpace", __version__)
        _limit_complaints()

    def wants(self, iteration: int) -> bool:
        """Return whether an iteration is traced; all processes agree."""
        return iteration % self._every == 0

    def span(
        self,
        key: TraceKey,
        path: Path,
        name: str,
        begin: int,
        end: int,
        attributes: Mapping[str, str | int] | None = None,
    ) -> None:
        """Send a span that has ended.

        Args:
            path: The span's path; its parent's is the path without the last step, a worker's is the round.
            begin: Nanoseconds on the monotonic clock.
            end: Nanoseconds on the monotonic clock.
        """
        offset = _wall_offset()
        context = Context()
        if path != ROUND:
            parent = SpanContext(
                trace_id(key), span_id(key, _parent(path)), is_remote=True, trace_flags=_SAMPLED
            )
            context = set_span_in_context(NonRecordingSpan(parent), context)
        fields = {"job": key.run.partition("/")[0], "run": key.run.partition("/")[2]}
        fields |= {"iteration": key.iteration, "attempt": key.attempt, **(attributes or {})}  # type: ignore[dict-item]
        with self._lock:
            self._ids.trace, self._ids.span = trace_id(key), span_id(key, path)
            span = self._tracer.start_span(name, context, attributes=fields, start_time=begin + offset)
        span.end(end + offset)

    def close(self) -> None:
        """Send the remaining spans, in 2 seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECONDS)


_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def _parent(path: Path) -> Path:
    """Return the path of a span's parent: a worker's path of three steps lies below the round."""
    return ROUND if len(path) <= 3 else path[:-1]


def _wall_offset() -> int:
    """Return the nanoseconds to add to the monotonic clock to get the time of day."""
    best = None
    for _ in range(3):  # an interruption between two readings would be an error
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = after - before, wall - (before + after) // 2
    assert best is not None
    return best[1]


class _GivenIds(IdGenerator):
    """A generator of the ids that it was given."""

    def __init__(self) -> None:
        self.trace = self.span = 1

    def generate_span_id(self) -> int:
        return self.span

    def generate_trace_id(self) -> int:
        return self.trace


def _limit_complaints() -> None:
    """Let the library, which retries, log its failures once a minute at most."""
    last = float("-inf")

    def is_due(record: logging.LogRecord) -> bool:
        nonlocal last
        if record.created - last < _SILENCE_SECONDS:
            return False
        last = record.created
        return True

    for name in _COMPLAINING:
        logging.getLogger(name).addFilter(is_due)
