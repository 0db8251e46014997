"""Runs a module as if nothing were installed but what a worker's installation has, and an extra."""

import importlib.abc
import importlib.metadata
import re
import runpy
import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def name_of(requirement):
    """A requirement's distribution, in the form that is compared."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def with_needed(requirements):
    """The distributions that are installed for these requirements."""
    found, todo = set(), [name_of(requirement) for requirement in requirements]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        try:
            needed = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        todo += [name_of(text) for text in needed if "extra ==" not in text]
    return found


class Missing(importlib.abc.MetaPathFinder):
    """Has nothing of the distributions that would not be installed."""

    def __init__(self, extra):
        there = with_needed([*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, ())])
        by_module = importlib.metadata.packages_distributions()
        ours = {"evenpace"}
        self._missing = {
            module
            for module, names in by_module.items()
            if not {name_of(name) for name in names} & (there | ours)
        } | {"lab"}

    def find_spec(self, fullname, path=None, target=None):
        """Refuse what is missing."""
        if fullname in self._missing:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
