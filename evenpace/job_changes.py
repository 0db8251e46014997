"""The changes to a running job that the page and `evenpace job` ask a manager for: their forms, in one table.

A change is an object with exactly one of these:

    {"policy": {"policy": NAME, "predictor": NAME, "tolerance": NUMBER}}   the last two may be left out
    {"total_batch_size": SAMPLES}
    {"sizer": {"sizer": NAME, "least": SAMPLES, "most": SAMPLES,
               "promise": NUMBER, "similarity": NUMBER}}   all but the first may be left out
    {"bounds": {"worker": NAME, "minimum": SAMPLES, "maximum": SAMPLES, "granularity": SAMPLES}}
    {"drain": {"worker": NAME}}
    {"remove": {"worker": NAME}}
    {"resize": {"workers": NUMBER, "drain": [NAME, ...]}}   the last may be left out
    {"paused": true or false}

It must not know who asks, or whether they may.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchsize_manager.client import ManagerClient
from idl.bounds import Bounds
from idl.errors import InvalidRequestError

Change = Callable[[ManagerClient, str], str]
"""A function of a manager's client and a job: it has the change made, and returns what was done, in words."""

_MOST = 2**62  # samples; the wire can carry nearly twice as many

_Reader = Callable[[Any, str], Any]  # of a value and its name; InvalidRequestError: the value is not allowed


def parse(body: Any) -> Change:
    """Return the change that an object asks for.

    Raises:
        InvalidRequestError: The object is none of the changes above.
    """
    if not isinstance(body, dict) or len(body) != 1 or next(iter(body)) not in _FORMS:
        raise InvalidRequestError(f"a change is an object with exactly one of {', '.join(_FORMS)}")
    ((name, value),) = body.items()
    form = _FORMS[name]
    if not isinstance(form.needed, Mapping):
        return form.change(form.needed(value, name))
    readers = {**form.needed, **form.possible}
    if not isinstance(value, dict) or not form.needed.keys() <= value.keys() <= readers.keys():
        also = f", and may have {', '.join(sorted(form.possible))}" if form.possible else ""
        raise InvalidRequestError(f"{name}: must be an object with {', '.join(sorted(form.needed))}{also}")
    return form.change(**{key: reader(value[key], key) for key, reader in readers.items() if key in value})


def _reader(allows: Callable[[Any], bool], words: str, *, quoted: bool = True) -> _Reader:
    """Return a function that returns an allowed value, and refuses others with the words."""

    def read(value: Any, name: str) -> Any:
        if not allows(value):
            shown = str(value)[:80] if quoted else value
            raise InvalidRequestError(f"{name} {shown!r}: must be {words}")
        return value

    return read


def _is_whole(value: Any, least: int = -_MOST) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


_text = _reader(lambda it: isinstance(it, str) and 0 < len(it) <= 200, "a text of 1 to 200 characters")
_list = _reader(lambda it: isinstance(it, list), "a list of workers' names")
_count = _reader(lambda it: _is_whole(it, 1), "a whole number from 1 to 2^62")
_samples = _reader(lambda it: _is_whole(it, 1), "a whole number of samples from 1 to 2^62")
_number = _reader(lambda it: isinstance(it, float) or _is_whole(it), "a number", quoted=False)
_truth = _reader(lambda it: isinstance(it, bool), "true or false", quoted=False)


def _names(value: Any, name: str) -> list[str]:
    return [_text(one, name) for one in _list(value, name)]


def _or_none(read: _Reader) -> _Reader:
    return lambda value, name: None if value is None else read(value, name)


def _calling(method: Callable[..., str]) -> Callable[..., Change]:
    """Return a function of values that returns the change for which a method is called with them."""
    return lambda *values, **named: lambda manager, job: method(manager, job, *values, **named)


def _sizer(sizer: str, least: int | None = None, most: int | None = None, **others: float | None) -> Change:
    if (least is None) != (most is None):
        raise InvalidRequestError("sizer: give both of least and most, or none")
    sizes = None if least is None or most is None else (least, most)
    return lambda manager, job: manager.set_sizer(job, sizer, sizes, **others)


def _bounds(worker: str, **sizes: int) -> Change:
    bounds = Bounds(**sizes)
    return lambda manager, job: manager.set_bounds(job, worker, bounds)


def _paused(paused: bool) -> Change:
    return lambda manager, job: manager.pause(job) if paused else manager.resume(job)


@dataclass(frozen=True)
class _Form:
    change: Callable[..., Change]  # function of the values
    # Readers of the values that an object must have; or of the one value, where there is no object.
    needed: _Reader | Mapping[str, _Reader]
    possible: Mapping[str, _Reader] = field(default_factory=dict)  # readers of what an object may have, too


_SIZES = dict.fromkeys(("minimum", "maximum", "granularity"), _samples)
_FORMS = {
    "policy": _Form(
        _calling(ManagerClient.set_policy),
        {"policy": _text},
        {"predictor": _or_none(_text), "tolerance": _or_none(_number)},
    ),
    "total_batch_size": _Form(_calling(ManagerClient.set_total_batch_size), _samples),
    "sizer": _Form(
        _sizer,
        {"sizer": _text},
        {"least": _samples, "most": _samples, "promise": _or_none(_number), "similarity": _or_none(_number)},
    ),
    "bounds": _Form(_bounds, {"worker": _text, **_SIZES}),
    "drain": _Form(_calling(ManagerClient.drain), {"worker": _text}),
    "remove": _Form(_calling(ManagerClient.remove), {"worker": _text}),
    "resize": _Form(_calling(ManagerClient.resize), {"workers": _count}, {"drain": _names}),
    "paused": _Form(_paused, _truth),
}
