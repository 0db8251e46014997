"""Batches, which are nested tuples and dictionaries of arrays, cut into pieces along the samples.

Results for the pieces are combined here, too. This module knows no framework: an array is an object that has
a `shape` and can be sliced.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from idl.errors import InvalidRequestError


def samples_in(batch: Any) -> int:
    """Return the number of samples of a batch: the first dimension that all its arrays share.

    Raises:
        InvalidRequestError: The batch has no array, or their first dimensions differ.
    """
    sizes = {int(array.shape[0]) if array.shape else None for array in _arrays(batch)}
    size = next(iter(sizes), None)
    if len(sizes) != 1 or size is None:
        lengths = ", ".join(sorted(map(str, sizes))) or "none"
        raise InvalidRequestError(
            f"the batch cannot be cut into pieces: the first dimensions of its arrays are {lengths}, "
            f"but all must be the number of samples"
        )
    return size


def cut(batch: Any, start: int, stop: int, samples: int) -> Any:
    """Return the samples from `start` to `stop - 1` of a batch of `samples`.

    A list without arrays that is as long as the batch, of texts for example, is cut, too. Any other object
    that is no array is returned unchanged.
    """
    if hasattr(batch, "shape"):
        return batch[start:stop]
    if isinstance(batch, Mapping):
        return {key: cut(value, start, stop, samples) for key, value in batch.items()}
    if not isinstance(batch, (list, tuple)):
        return batch
    if not _arrays(batch):
        return batch[start:stop] if len(batch) == samples else batch
    return _like(batch, [cut(value, start, stop, samples) for value in batch])


def weighted_mean(results: Sequence[Any], weights: Sequence[float]) -> Any:
    """Return the weighted mean of the pieces' results: numbers, arrays, or tuples and dictionaries of these.

    Args:
        results: One result for each piece, all of the same structure.
        weights: The weight of each; they sum to 1.
    """
    first = results[0]
    if first is None or len(results) == 1:
        return first
    if isinstance(first, Mapping):
        return {key: weighted_mean([result[key] for result in results], weights) for key in first}
    if isinstance(first, (list, tuple)):
        return _like(first, [weighted_mean(values, weights) for values in zip(*results, strict=True)])
    return sum(weight * result for weight, result in zip(weights, results, strict=True))


def map_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply `function` to each array in nested tuples, lists and dictionaries."""
    if hasattr(value, "shape"):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_arrays(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [map_arrays(function, item) for item in value])
    return value


def _like(template: Any, values: list[Any]) -> Any:
    """Make a list, tuple or named tuple of the template's type from values."""
    return type(template)(*values) if hasattr(template, "_fields") else type(template)(values)


def _arrays(batch: Any) -> list[Any]:
    if hasattr(batch, "shape"):
        return [batch]
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if not isinstance(batch, (list, tuple)):
        return []
    return [array for value in batch for array in _arrays(value)]
