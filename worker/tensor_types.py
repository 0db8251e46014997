"""Types of a model's tensors, and of the flat arrays that hold them. This module knows no framework."""

from collections.abc import Iterable

from idl.errors import InvalidRequestError
from idl.layout import Tensor


def check_floating(tensors: Iterable[Tensor]) -> None:
    """Check that the tensors are of floating-point numbers, so that a step and an average can change them.

    Raises:
        InvalidRequestError: One is not; flat arrays would drop its imaginary part, or round its integers.
    """
    for number, tensor in enumerate(tensors):
        if "float" not in tensor.dtype:
            raise InvalidRequestError(
                f"{tensor.name or f'parameter {number}'} is of {tensor.dtype}: parameters must be "
                f"floating-point numbers; of complex ones, make the real and the imaginary part parameters "
                f"of their own, and leave integers out of what is trained"
            )


def flat_dtype(tensors: Iterable[Tensor]) -> str:
    """Return the dtype of flat arrays that keep all digits of the tensors: float64 if any needs it."""
    return "float64" if any(tensor.dtype == "float64" for tensor in tensors) else "float32"
