"""A second copy of the product, whose modules have the simulated standard library."""

import contextlib
import importlib
import pkgutil
import sys
from functools import cache

import uvloop

from tests.simulation import commands, disk, modules, network, proxy
from tests.simulation.world import World

ROOMS = (
    "idl",
    "rpc",
    "ps",
    "batchsize_manager",
    "worker",
    "predictors",
    "scheduler",
    "evenpace",
    "lab",
    "tests",
)
_SHARED = ("tests.simulation", "tests.conftest", "tests.zygote")
SIMULATED_ROOMS = ("idl", "rpc", "ps", "batchsize_manager", "worker")
FRAMEWORKS = ("worker.torch", "worker.keras", "worker.jax")
_SIMULATED = {
    **{name: getattr(modules, name) for name in ("time", "threading", "queue", "random", "uuid", "fcntl")},
    **{name: getattr(commands, name) for name in ("select", "subprocess")},
    **{name: getattr(disk, name) for name in ("os", "sqlite3")},
    "socket": network.socket,
    "concurrent.futures": modules.futures,
}
_SIMULATED_IN_TESTS = {"psutil": commands.psutil, "uvloop": modules.like(uvloop, run=network.run)}


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
            importlib.import_module("lab.proxy").Proxy = proxy.Proxy
        with self._installed({}):
            commands.replace()

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

    def test_module(self, name):
        """Return a module of tests of the copy, which has the simulated modules itself (inside `with`)."""
        if name not in sys.modules:
            others = _SIMULATED | _SIMULATED_IN_TESTS
            kept = {name: sys.modules[name] for name in others}
            sys.modules.update(others)
            try:
                importlib.import_module("tests.services").address_of_our_own = _address_of_our_own
                importlib.import_module(name)
            finally:
                sys.modules.update(kept)
        return sys.modules[name]

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

    def _import_all(self, names=SIMULATED_ROOMS):
        for name in names:
            module = importlib.import_module(name)
            found = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")
            self._import_all([one.name for one in found if not one.name.startswith(FRAMEWORKS)])


def _is_ours(name):
    return name.partition(".")[0] in ROOMS and not name.startswith(_SHARED)


def _address_of_our_own():
    return importlib.import_module("rpc.address").Address("127.0.0.1", World.current.free_port())


@cache
def product():
    """Return the copy, which is made once."""
    return Product()
