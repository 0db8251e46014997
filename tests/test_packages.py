"""Arrows among the packages point down only, and none leads into the lab, which is not installed."""

import ast
import graphlib

import pytest

from tests import ROOT

BELOW = {
    "idl": set(),
    "predictors": {"idl"},
    "rpc": {"idl"},
    "batchsize_manager": {"predictors", "rpc", "idl"},
    "ps": {"rpc", "idl"},
    "worker": {"rpc", "idl"},
    "scheduler": {"worker", "ps", "batchsize_manager", "predictors", "rpc", "idl"},
    "evenpace": {"scheduler", "worker", "ps", "batchsize_manager", "predictors", "rpc", "idl"},
    "lab": {"evenpace", "scheduler", "worker", "ps", "batchsize_manager", "predictors", "rpc", "idl"},
}


def modules(folder):
    """The files of a package."""
    return sorted(ROOT.joinpath(folder).rglob("*.py"))


def imported(path):
    """The names of all modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.slow
@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_those_below_it(package):
    """Not even where it is lazy, or for types alone."""
    others = BELOW.keys() - BELOW[package] - {package}
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in modules(package)
        for name in imported(path)
        if name.partition(".")[0] in others
    }
    assert modules(package)
    assert not wrong


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle():
    """Not even where it is lazy, or for types alone."""
    paths = [path.relative_to(ROOT) for package in BELOW for path in modules(package)]
    names = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in paths}

    def targets(name):
        for one in imported(ROOT / names[name]):
            found = one if one in names else one.rpartition(".")[0]
            if found in names and found != name:
                yield found

    graph = graphlib.TopologicalSorter({name: set(targets(name)) for name in names})
    assert len(names) > 300
    graph.prepare()  # raises CycleError, with the modules
