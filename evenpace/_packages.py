"""A check that nothing hides the packages that evenpace imports, whose names are everyday words."""

import importlib.util
from pathlib import Path

PACKAGES = ("idl", "rpc", "predictors", "batchsize_manager", "ps", "worker", "scheduler")

_ROOT = Path(__file__).resolve().parent.parent


def check_packages() -> None:
    """Check that each of our packages is the one that Python imports.

    Raises:
        ImportError: A user's module of the same name is found first; the message names it and says what to
            do.
    """
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"evenpace's package {name!r} is missing: install evenpace again")
        locations = list(spec.submodule_search_locations or ())
        if any(Path(location).resolve() == _ROOT / name for location in locations):
            continue
        raise ImportError(hidden_by(name, spec.origin or ", ".join(locations)))


def check_folder(folder: Path) -> None:
    """Check that a script's folder has no module with the name of one of our packages.

    Raises:
        ImportError: It has one; the script would import ours in its place, or the other way round.
    """
    if folder.resolve() == _ROOT:
        return
    for name in PACKAGES:
        for candidate in (folder / f"{name}.py", folder / name / "__init__.py"):
            if candidate.exists():
                raise ImportError(hidden_by(name, str(candidate)))


def hidden_by(name: str, origin: str) -> str:
    """Return the message that a file hides one of our packages, and what to do."""
    return (
        f"{origin} has the name of evenpace's own package {name!r}, and one hides the other: "
        f"rename it (to my_{name}, say), or move it into a package of its own"
    )
