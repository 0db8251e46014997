"""The session of this process: that of `evenpace worker`, or of a script that calls `connect`."""

import atexit
import contextlib
import logging
import sys
from collections.abc import Sequence
from types import TracebackType

from evenpace.observing import Observing
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, ReleasedError
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.places import parse_where
from worker.own_session import has_own_session, set_own_session
from worker.own_session import own_session as session
from worker.session import Session, SessionConfig, default_worker_name

__all__ = ["connect", "session"]

log = logging.getLogger(__name__)


def connect(
    manager: str,
    ps: str | Sequence[str] = (),
    *,
    job: str = SessionConfig.job,
    worker: str | None = None,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    granularity: int = 1,
    at_once: int = 1,
    device: str | None = None,
    host: str | None = None,
    push_dtype: str | None = None,
    connect_timeout: float = SessionConfig.connect_timeout,
    barrier_timeout: float = SessionConfig.barrier_timeout,
    credentials: Credentials | None = None,
    metrics: str | None = None,
    traces: str | None = None,
    trace_every: int = Observing.trace_every,
    insecure: bool = False,
) -> Session:
    """Make this process's session, in a script that is not started by `evenpace worker`.

    Where this worker is released before its first batch, the script ends there, with status 0.

    Args:
        manager: HOST:PORT of the BatchSizeManager; HOST:PORT,HOST:PORT for places that are tried in turn, or
            @FILE for a file with either, which is read for each attempt to connect.
        ps: Likewise, for each shard of the parameter server, in the same order for every worker; none where
            the workers reduce their gradients among themselves, as with `torch.distributed`.
        job: The job's name.
        worker: This worker's name, unique in the job; by default from the rank that torchrun gives, or else
            the host's name and the process id.
        min_batch_size: The fewest samples that this worker takes.
        max_batch_size: The most samples that this worker can take.
        granularity: Number that divides all its batch sizes.
        at_once: The most micro-batches that its GPU computes at once, in a job with micro-batches; the
            manager finds out how many pay.
        device: The kind of device that it computes on: a worker that joins starts with the batch size of
            its kind. By default the GPU's name, or the CPU's and its number of cores.
        host: This machine's address as other workers reach it, where the manager forms their group; by
            default that from which it reaches the manager.
        push_dtype: "bfloat16": round gradients to it before they are pushed to the parameter server, which
            adds them up as exactly as others: half as many bytes. None: push them as they are.
        connect_timeout: Seconds in which each service must be reached.
        barrier_timeout: Seconds for which the others may keep this worker waiting.
        credentials: This worker's certificate and token, where the services ask for them.
        metrics: HOST:PORT at which Prometheus can scrape this worker's metrics; over TLS if `credentials`
            has a certificate.
        traces: URL of an OpenTelemetry collector for traces of iterations, by OTLP over HTTP.
        trace_every: Number of iterations of which one is traced; the same for all parts of the cluster.
        insecure: Whether other machines may read `metrics` without TLS.

    Raises:
        ValueError: A value is not allowed (`InvalidRequestError` for addresses), or a session exists.
        AddressInUseError: Something listens at `metrics` already.
    """
    config = SessionConfig(
        manager=parse_where(manager),
        shards=tuple(parse_where(shard) for shard in ([ps] if isinstance(ps, str) else ps)),
        job=job,
        worker=worker or default_worker_name(),
        bounds=Bounds(
            min_batch_size,
            Bounds().maximum if max_batch_size is None else max_batch_size,
            granularity,
            at_once,
        ),
        connect_timeout=connect_timeout,
        barrier_timeout=barrier_timeout,
        credentials=credentials,
        device=device,
        host=host,
        push_dtype=push_dtype,
    )
    address = Address.parse(metrics) if metrics else None
    made = open_session(config, Observing(address, traces=traces, trace_every=trace_every), insecure=insecure)
    _end_well_once_released()
    return made


def open_session(config: SessionConfig, observing: Observing, *, insecure: bool) -> Session:
    """Make this process's session, as `evenpace worker` does.

    Args:
        config: Where the services are, and what this worker is.
        observing: Its metrics and traces.
        insecure: Whether other machines may read its figures without TLS.

    Raises:
        InvalidRequestError: A session exists, or others could read the figures.
        AddressInUseError: Something listens where the figures are to be.
    """
    if has_own_session():
        raise InvalidRequestError("this process has a session already: evenpace.connect was called before")
    observing.check_worker(config.credentials, insecure=insecure)
    made = Session(config)
    beside = contextlib.ExitStack()
    beside.enter_context(observing.worker(made))
    atexit.register(beside.close)  # after the session is closed: the last registered runs first
    atexit.register(_close, made)
    set_own_session(made)
    return made


def _end_well_once_released() -> None:
    """Have a `ReleasedError` that nobody catches end the process as `evenpace worker` would."""
    earlier = sys.excepthook

    def end(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if not isinstance(error, ReleasedError):
            earlier(kind, error, traceback)
            return
        log.warning("%s; its script ends here", error)
        raise SystemExit(0)  # whose status Python takes from the hook

    sys.excepthook = end


def _close(session: Session) -> None:
    """Close the session of a process that ends; Python keeps the error that ended it, if one did."""
    session.failed = session.failed or getattr(sys, "last_value", None) is not None
    session.close()
