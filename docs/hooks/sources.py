"""Pages that show a file of the repository, or list a folder with what its modules say of themselves."""

import ast
from pathlib import Path

_LANGUAGES = {".py": "python", ".thrift": "thrift", ".yml": "yaml", ".toml": "toml", ".md": "markdown"}
_FRONT = "---\nsearch:\n  exclude: true\n---\n\n"


def source_page(root: Path, path: str) -> str:
    """The page of one file or folder, which searches pass over."""
    return _FRONT + (_listing(root, path) if (root / path).is_dir() else _file(root, path))


def _file(root: Path, path: str) -> str:
    language = _LANGUAGES.get(Path(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(root / path).read_text().rstrip()}\n````\n"


def _listing(root: Path, path: str) -> str:
    rows = [
        f"| `{file.relative_to(root / path)}` | {_first_line(file)} |"
        for file in sorted((root / path).rglob("*"))
        if file.suffix in {".py", ".thrift", ".j2"} and "__pycache__" not in file.parts
    ]
    return "\n".join([f"# {path}/", "", "| file | what it is |", "| --- | --- |", *rows, ""])


def _first_line(file: Path) -> str:
    if file.suffix != ".py":
        return ""
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.partition("\n")[0].replace("|", "\\|")
