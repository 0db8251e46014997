"""Checks of the packages that evenpace needs: present, new enough, and not hidden by others."""

import contextlib
import importlib.metadata
import importlib.util
import platform
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from evenpace._packages import check_folder, check_packages
from evenpace.doctor.findings import Finding, Subject, note, ok, problem, warning
from idl.version import __version__

_NAME = "evenpace"
_NOT_OURS = ("dev", "fuzz")  # extras for evenpace's developers


def packages_hidden(subject: Subject) -> Iterator[Finding]:
    """Check whether a module in the current folder hides one of evenpace's packages."""
    try:
        check_packages()
        check_folder(Path.cwd())
    except ImportError as error:
        found, _, advice = str(error).partition(": ")
        yield problem("packages", found, advice or "install evenpace again")
    else:
        yield ok("packages", f"evenpace's own, from {Path(__file__).parents[1]}")


def versions(subject: Subject) -> Iterator[Finding]:
    """Compare Python and all packages with the requirements in evenpace's metadata."""
    try:
        of_evenpace = importlib.metadata.distribution(_NAME)
    except importlib.metadata.PackageNotFoundError:
        yield warning(
            "evenpace",
            f"version {__version__} runs from a folder, and is not installed",
            "install it with pip, so that what it needs is known and checked",
        )
        return
    if of_evenpace.version == __version__:
        yield ok("evenpace", f"version {__version__}")
    else:
        yield warning(
            "evenpace",
            f"version {__version__} runs, but {of_evenpace.version} is installed",
            "install it again, or run the one that is installed",
        )
    needed = SpecifierSet(of_evenpace.metadata["Requires-Python"] or "")
    yield from _compared("Python", platform.python_version(), needed, "python")
    fine: list[str] = []
    missing: dict[str, str] = {}  # by extra
    for text in of_evenpace.requires or ():
        requirement = Requirement(text)
        extra = _extra(requirement)
        if extra in _NOT_OURS:
            continue
        version = _installed(requirement.name)
        if version is None:
            if extra is None:
                yield problem(
                    requirement.name,
                    "not installed",
                    f"pip install '{requirement.name}{requirement.specifier}'",
                )
            else:
                missing.setdefault(extra, requirement.name)
            continue
        found = list(_compared(requirement.name, version, requirement.specifier, requirement.name))
        if all(finding.level == "ok" for finding in found):
            fine.append(f"{requirement.name} {version}")
        else:
            yield from found
    yield ok("packages", ", ".join(fine))
    if missing:
        left_out = ", ".join(f"{name} ({extra})" for extra, name in missing.items())
        yield note(
            "extras", f"not installed: {left_out}", "pip install 'evenpace[EXTRA]', where one is needed"
        )


def torch_build(subject: Subject) -> Iterator[Finding]:
    """Report what torch was built for, without importing it, which takes seconds."""
    version, cuda = torch_version()
    if version is not None:
        yield ok("torch", f"version {version}, built for {f'CUDA {cuda}' if cuda else 'CPUs alone'}")


def torch_version() -> tuple[str | None, str | None]:
    """Return the versions of the installed torch and of the CUDA that it was built for, or None."""
    spec = importlib.util.find_spec("torch")
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        file = Path(location) / "version.py"
        if file.is_file():
            text = file.read_text()
            return tuple(_assigned(text, name) for name in ("__version__", "cuda"))  # type: ignore[return-value]
    return None, None


def _assigned(text: str, name: str) -> str | None:
    found = re.search(rf"^{name}\s*(?::[^=]*)?=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
    return found[1] if found else None


def _installed(name: str) -> str | None:
    """Return the version of a package, or of its build for CPUs; None if it is not installed."""
    for candidate in (name, f"{name}-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(candidate)
    return None


def _compared(name: str, version: str, needed: SpecifierSet, install: str) -> Iterator[Finding]:
    if needed.contains(version, prereleases=True):
        yield ok(name, f"version {version}")
    else:
        do = "install a newer Python" if install == "python" else f"pip install '{install}{needed}'"
        yield problem(name, f"version {version}, but evenpace needs {needed}", do)


def _extra(requirement: Requirement) -> str | None:
    """Return the extra that needs a package; None if evenpace itself needs it."""
    found = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", str(requirement.marker or ""))
    return found[1] if found else None
