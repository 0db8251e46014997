"""PyTorch: a hook of a module, of which the module's copies have none."""

import contextlib
from collections.abc import Callable
from typing import Any


class ModuleHook:
    """A hook of a module that stays behind when the module is copied or saved.

    Args:
        act: What it does; returns nothing.
    """

    def __init__(self, act: Callable[..., None]) -> None:
        self._act = act

    def __call__(self, *arguments: Any) -> None:
        """Act on what the module gives a hook."""
        self._act(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes anything and does nothing: a model that was saved as a
        # whole can be loaded without evenpace.
        return getattr, (contextlib.nullcontext(), "__exit__")
