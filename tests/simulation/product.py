"""A second copy of the product, whose modules have the simulated standard library."""

import contextlib
import importlib
import pkgutil
import sys
from functools import cache

from tests.simulation import modules, network

ROOMS = ("idl", "rpc", "ps", "batchsize_manager", "worker", "predictors", "evenpace", "tests.scripts", "lab")
_SIMULATED_ROOMS = ("idl", "rpc", "ps", "batchsize_manager", "worker")
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
        self._import_all()  # so that others' packages, which it imports, are not made of simulated modules
        with self._installed(_SIMULATED):
            self._import_all()
            monitors = importlib.import_module("worker.resources.monitors")
            meter = importlib.import_module("worker.meter")
            meter.ResourceMonitor = lambda: _Monitor(monitors.Usage(0.1, 0.1))

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

    def _import_all(self, names=_SIMULATED_ROOMS):
        for name in names:
            module = importlib.import_module(name)
            found = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")
            self._import_all([one.name for one in found if not one.name.startswith(_FRAMEWORKS)])


def _is_ours(name):
    return name.startswith(tuple(f"{room}." for room in ROOMS)) or name in ROOMS


@cache
def product():
    """Return the copy, which is made once."""
    return Product()
