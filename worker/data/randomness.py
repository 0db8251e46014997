"""Random numbers that follow a micro-batch and not the worker, and generators that do not.

This module knows the generators of Python and NumPy, and no framework.
"""

import contextlib
import copy
import dataclasses
import functools
import random
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from rpc.field_log import FieldLog
from worker.data.micro_batches import Draws, MicroBatch
from worker.data.source import Source

_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
# Frameworks' generators, by package and class: a worker imports its own framework alone.
_FRAMEWORKS = {("torch", "Generator"), ("tensorflow", "Generator"), ("keras", "SeedGenerator")}
_SEEDED = (random.random.__self__, np.random.random.__self__)  # type: ignore[attr-defined]
_LOOKED_AT = 10_000  # objects


def seed_generators(seed: int) -> None:
    """Seed the generators of Python and NumPy that a script draws from unless it makes its own.

    Args:
        seed: From 0 to 2^63 - 1; NumPy's generator uses its lowest 32 bits.
    """
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)


class SeededLoading:
    """The loading of micro-batches with random numbers of their own.

    The first is loaded again, and made into a batch again, to see whether they follow.

    Args:
        source: The samples, whose generators are named if the two differ.
        seed_generators: Seeds the generators that the source, and the passes over a micro-batch, may draw
            from.
        log: A logger whose fields all log lines get.
    """

    def __init__(
        self,
        source: Source,
        seed_generators: Callable[[int], None],
        log: FieldLog,
    ) -> None:
        self._source = source
        self._seed_generators = seed_generators
        self._log = log.of(__name__)
        self._is_checked = False  # whether samples follow their micro-batch

    def load(self, part: MicroBatch) -> Any:
        """Return a micro-batch, made of its samples with the generators that its computation draws from."""
        samples = self._load(part)
        if not self._is_checked and self._source.forget(part):
            self._is_checked = True
            # Twice: a loading process draws from a copy, with which this process's generator agrees at first.
            again = [self._load(part) for _ in range(2)]
            try:
                follow = all(are_alike(samples, one) for one in again)
                # Of copies: a function may change the samples that it makes a batch of.
                follow = follow and are_alike(
                    *(self._collate(part, copy.deepcopy(samples)) for _ in range(2))
                )
            except Exception as error:  # noqa: BLE001 - whatever the samples' own types raise
                self._log.debug("samples cannot be compared: %r", error)
            else:
                if not follow:
                    self._warn()
        return self._collate(part, samples)

    def _load(self, part: MicroBatch) -> Any:
        if self._source.is_seeded:
            self._seed_generators(part.seed(Draws.LOADING))
        return self._source.samples(part)

    def _collate(self, part: MicroBatch, samples: Any) -> Any:
        self._seed_generators(part.seed(Draws.COMPUTING))
        return self._source.collate(samples)

    def _warn(self) -> None:
        own = [where for name, value in self._source.drawing.items() for where in own_generators(name, value)]
        self._log.warning(
            "samples differ when they are loaded again, so that the result depends on which worker loads "
            "them: draw random numbers from the generators of random, numpy.random and the framework that "
            "evenpace seeds for each micro-batch, and not from generators of your own, such as %s",
            ", ".join(own[:5]) or "(none was found in the data set's attributes)",
        )


def own_generators(name: str, value: Any) -> list[str]:
    """Return where an object holds random generators of its own, such as `dataset.transform.rng (Generator)`.

    Attributes, items, closures and partial functions are followed, and what functions, `__getitem__` and
    `__call__` use of their modules.

    Args:
        value: The object.
    """
    found, seen, waiting = [], set[int](), [(name, value)]
    seeded = (*_SEEDED, getattr(sys.modules.get("torch"), "default_generator", None))
    while waiting and len(seen) < _LOOKED_AT:
        where, one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if any(one is each for each in seeded):
            continue
        if _is_generator(one):
            found.append(f"{where} ({type(one).__name__})")
        else:
            waiting += _parts(where, one)
    return found


def _is_generator(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, _GENERATORS) or (kind.__module__.partition(".")[0], kind.__name__) in _FRAMEWORKS


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor, of whichever framework."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _parts(where: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds, with the expressions for it."""
    if isinstance(value, (str, bytes, int, float, type, ModuleType)) or _is_array(value):
        return
    if isinstance(value, dict):
        yield from ((f"{where}[{key!r}]", one) for key, one in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((f"{where}[{number}]", one) for number, one in enumerate(value))
    elif isinstance(value, functools.partial):
        yield f"{where}.func", value.func
        yield f"{where}.args", value.args
        yield f"{where}.keywords", value.keywords
    elif isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        cells = value.__closure__ or ()
        for name, cell in zip(names, cells, strict=True):
            with contextlib.suppress(ValueError):  # it is empty
                yield f"{where}.{name}", cell.cell_contents
        yield from _used(value)
    else:
        if hasattr(value, "__self__"):
            yield f"{where}.__self__", value.__self__
        for method in ("__getitem__", "__call__"):
            if isinstance(function := getattr(type(value), method, None), FunctionType):
                yield f"{where}.{method}", function
        own = getattr(value, "__dict__", {})
        yield from ((f"{where}.{n}", one) for n, one in own.items())
        for kind in type(value).__mro__:
            of_class = vars(kind).items() if kind.__module__ != "builtins" else ()
            yield from (
                (f"{where}.{n}", one)
                for n, one in of_class
                if n not in own and not n.startswith("__") and not hasattr(type(one), "__get__")
            )


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses of its module's names, and of other modules."""
    used = function.__code__.co_names
    for name in used:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{n}", vars(value)[n]) for n in used if n in vars(value))
        elif value is not None:
            yield name, value


def are_alike(one: Any, other: Any) -> bool:
    """Return whether two samples, or nested samples, are equal to the last bit."""
    if type(one) is not type(other):
        return False
    if _is_array(one):
        return bool(one.shape == other.shape and one.dtype == other.dtype) and _bits(one) == _bits(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if dataclasses.is_dataclass(one):
        return all(are_alike(getattr(one, f.name), getattr(other, f.name)) for f in dataclasses.fields(one))
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if type(one).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
        return are_alike(vars(one), vars(other)) if hasattr(one, "__dict__") else True
    return bool(one == other)


def _bits(array: Any) -> bytes:
    # Not imported: NumPy has not all types of PyTorch's tensors, nor their devices.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        array = array.detach().cpu().contiguous().flatten().view(torch.uint8)
    plain = np.asarray(array)
    return repr(plain.tolist()).encode() if plain.dtype.hasobject else plain.tobytes()
