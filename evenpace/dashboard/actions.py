"""Changes to a job: the form of a request, and calls that have the manager make the change.

A change is an object with exactly one of these:

    {"policy": {"policy": NAME, "predictor": NAME, "tolerance": NUMBER}}   the last two may be left out
    {"total_batch_size": SAMPLES}
    {"sizer": {"sizer": NAME, "least": SAMPLES, "most": SAMPLES}}   the last two may be left out
    {"bounds": {"worker": NAME, "minimum": SAMPLES, "maximum": SAMPLES, "granularity": SAMPLES}}
    {"drain": {"worker": NAME}}
    {"remove": {"worker": NAME}}
    {"resize": {"workers": NUMBER, "drain": [NAME, ...]}}   the last may be left out
    {"paused": true or false}
"""

from collections.abc import Callable, Mapping
from typing import Any

from batchsize_manager.client import ManagerClient
from evenpace.dashboard.config import ManagerPageConfig
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from rpc.credentials import Credentials

Change = Callable[[ManagerClient, str], str]

_MOST = 2**62  # samples; the wire can carry nearly twice as many


def parse(body: Any) -> Change:
    """Return the change that a request asks for, as a function of the manager's client and the job.

    Raises:
        InvalidRequestError: The body is none of the changes above.
    """
    if not isinstance(body, dict) or len(body) != 1 or next(iter(body)) not in _PARSERS:
        raise InvalidRequestError(f"a change is an object with exactly one of {', '.join(_PARSERS)}")
    name, value = next(iter(body.items()))
    return _PARSERS[name](value)


def perform(config: ManagerPageConfig, change: Change, job: str, token: str | None) -> str:
    """Have the manager make a change, with the viewer's own token; return what it did, in words.

    Raises:
        EvenpaceError: The manager did not make the change.
    """
    own = config.credentials
    with ManagerClient(
        config.manager, Credentials(own.ca, own.certificate, own.key, token_text=token)
    ) as manager:
        return change(manager, job)


def _policy(value: Any) -> Change:
    fields = _fields(value, "policy", {"policy"}, {"predictor", "tolerance"})
    policy = _text(fields["policy"], "policy")
    predictor = fields.get("predictor")
    if predictor is not None:
        predictor = _text(predictor, "predictor")
    tolerance = fields.get("tolerance")
    if tolerance is not None and (isinstance(tolerance, bool) or not isinstance(tolerance, int | float)):
        raise InvalidRequestError(f"tolerance {tolerance!r}: must be a number")
    exact = None if tolerance is None else float(tolerance)
    return lambda manager, job: manager.set_policy(job, policy, predictor, exact)


def _total_batch_size(value: Any) -> Change:
    samples = _samples(value, "total_batch_size")
    return lambda manager, job: manager.set_total_batch_size(job, samples)


def _sizer(value: Any) -> Change:
    fields = _fields(value, "sizer", {"sizer"}, {"least", "most"})
    sizer = _text(fields["sizer"], "sizer")
    if ("least" in fields) != ("most" in fields):
        raise InvalidRequestError("sizer: give both of least and most, or none")
    sizes = None
    if "least" in fields:
        sizes = (_samples(fields["least"], "least"), _samples(fields["most"], "most"))
    return lambda manager, job: manager.set_sizer(job, sizer, sizes)


def _bounds(value: Any) -> Change:
    sizes = ("minimum", "maximum", "granularity")
    fields = _fields(value, "bounds", {"worker", *sizes}, set())
    worker = _text(fields["worker"], "worker")
    bounds = Bounds(*(_samples(fields[size], size) for size in sizes))
    return lambda manager, job: manager.set_bounds(job, worker, bounds)


def _drain(value: Any) -> Change:
    worker = _text(_fields(value, "drain", {"worker"}, set())["worker"], "worker")
    return lambda manager, job: manager.drain(job, worker)


def _remove(value: Any) -> Change:
    worker = _text(_fields(value, "remove", {"worker"}, set())["worker"], "worker")
    return lambda manager, job: manager.remove(job, worker)


def _resize(value: Any) -> Change:
    fields = _fields(value, "resize", {"workers"}, {"drain"})
    workers, names = fields["workers"], fields.get("drain", [])
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= _MOST:
        raise InvalidRequestError(f"workers {str(workers)[:80]!r}: must be a whole number, at least 1")
    if not isinstance(names, list):
        raise InvalidRequestError(f"drain {str(names)[:80]!r}: must be a list of workers' names")
    drained = [_text(name, "drain") for name in names]
    return lambda manager, job: manager.resize(job, workers, drained)


def _paused(value: Any) -> Change:
    if not isinstance(value, bool):
        raise InvalidRequestError(f"paused {value!r}: must be true or false")
    return lambda manager, job: manager.pause(job) if value else manager.resume(job)


_PARSERS: Mapping[str, Callable[[Any], Change]] = {
    "policy": _policy,
    "total_batch_size": _total_batch_size,
    "sizer": _sizer,
    "bounds": _bounds,
    "drain": _drain,
    "remove": _remove,
    "resize": _resize,
    "paused": _paused,
}


def _fields(value: Any, name: str, needed: set[str], possible: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or not needed <= value.keys() <= needed | possible:
        also = f", and may have {', '.join(sorted(possible))}" if possible else ""
        raise InvalidRequestError(f"{name}: must be an object with {', '.join(sorted(needed))}{also}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise InvalidRequestError(f"{name} {str(value)[:80]!r}: must be a text of 1 to 200 characters")
    return value


def _samples(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise InvalidRequestError(
            f"{name} {str(value)[:80]!r}: must be a whole number of samples, at least 1"
        )
    return value
