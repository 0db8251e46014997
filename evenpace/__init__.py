"""evenpace keeps every worker of a distributed training job at an even pace.

A training script imports this and nothing else of ours:

    import evenpace

    loader = evenpace.torch.DataLoader(dataset, batch_size=256, shuffle=True)
    optimizer = evenpace.torch.distribute(optimizer, loader, model)

and is started with `evenpace run SCRIPT --workers 3`, or on each machine of a cluster with
`evenpace worker --manager HOST:PORT --ps HOST:PORT SCRIPT`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from evenpace._packages import check_packages
from idl.version import __version__ as __version__

check_packages()

if TYPE_CHECKING:
    from evenpace import jax as jax
    from evenpace import keras as keras
    from evenpace import scalars as scalars
    from evenpace import torch as torch
    from evenpace.context import connect as connect
    from evenpace.context import session as session

__all__ = ["connect", "jax", "keras", "scalars", "session", "torch"]


def __getattr__(name: str) -> Any:
    """Load frameworks and sessions when they are first used."""
    if name in {"jax", "keras", "scalars", "torch"}:
        return importlib.import_module(f"evenpace.{name}")
    if name in {"connect", "session"}:
        return getattr(importlib.import_module("evenpace.context"), name)
    raise AttributeError(f"module 'evenpace' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return all names, those that are loaded when they are first used among them."""
    return sorted({*globals(), *__all__})
