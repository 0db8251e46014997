"""A second copy of the product, whose modules have the simulated standard library."""

import contextlib
import importlib
import pkgutil
import sys
from functools import cache

from tests.simulation import modules, network

ROOMS = ("idl", "rpc", "ps", "batchsize_manager", "worker", "predictors", "evenpace", "tests.scripts", "lab")
_SERVICES = ("idl", "rpc", "ps", "batchsize_manager")
_FRAMEWORKS = ("worker.torch", "worker.keras", "worker.jax")
_SIMULATED = {
    **{name: getattr(modules, name) for name in ("time", "threading", "queue", "random", "uuid", "fcntl")},
    **{name: getattr(network, name) for name in ("socket", "select")},
    "concurrent.futures": modules.futures,
}


class _Monitor:
    """A worker's `ResourceMonitor`: it uses a tenth of the machine, always."""

    def __init__(self, usage):
        self._usage = usage

    def resume(self):
        """Do nothing."""

    def record_counters(self):
        """Do nothing."""

    def sample(self):
        """Return the usage."""
        return self._usage

    def close(self):
        """Do nothing."""


class Product:
    """The copy; inside `with`, its modules are those that `import` finds."""

    def __init__(self):
        self._modules = {}
        import asyncio.trsock  # noqa: F401 - what the product imports of others is imported now, as it is
        import concurrent.futures.process  # noqa: F401

        for room in _SERVICES:
            importlib.import_module(room)
        for name in ("batchsize_manager.service", "ps.service", "worker.session"):
            importlib.import_module(name)
        with self._installed(_SIMULATED):
            for room in _SERVICES:
                self._import_all(room)
            monitors = importlib.import_module("worker.resources.monitors")
            meter = importlib.import_module("worker.meter")
            meter.ResourceMonitor = lambda: _Monitor(monitors.Usage(0.1, 0.1))
            self._import_all("worker")

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._installed({}))
        return self

    def __exit__(self, *error):
        self._stack.close()

    @staticmethod
    def module(name):
        """Return a module of the copy (inside `with`)."""
        return importlib.import_module(name)

    @contextlib.contextmanager
    def _installed(self, others):
        kept = {name: module for name, module in sys.modules.items() if _is_ours(name)}
        kept |= {name: sys.modules[name] for name in others}
        for name in kept:
            del sys.modules[name]
        sys.modules.update(self._modules | others)
        try:
            yield
        finally:
            self._modules = {name: module for name, module in sys.modules.items() if _is_ours(name)}
            for name in self._modules:
                del sys.modules[name]
            sys.modules.update(kept)

    def _import_all(self, name):
        module = importlib.import_module(name)
        for found in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}."):
            if not found.name.startswith(_FRAMEWORKS):
                self._import_all(found.name)


def _is_ours(name):
    return name.startswith(tuple(f"{room}." for room in ROOMS)) or name in ROOMS


@cache
def product():
    """Return the copy, which is made once."""
    return Product()
