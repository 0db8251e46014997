"""The page of the Python API, made from docstrings, without importing any framework."""

import ast
import re
import textwrap
from pathlib import Path

_MODULES = {
    "evenpace": ("connect", "session"),
    "evenpace.torch": None,
    "evenpace.keras": None,
    "evenpace.jax": None,
}
_HOME = {"connect": "evenpace.context", "session": "evenpace.context"}
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")

_Definition = ast.FunctionDef | ast.ClassDef


def python_api(root: Path) -> str:
    """The whole page, as Markdown."""
    parts = [
        "# The Python API\n\nA training script imports `evenpace` and nothing else of ours. This page is "
        "made from its docstrings; [frameworks](frameworks.md) says how these are used.\n"
    ]
    for module, names in _MODULES.items():
        tree = _tree(root, module)
        parts.append(f"\n## {module}\n\n{_markdown(ast.get_docstring(tree) or '')}")
        for name in names or _exported(tree):
            parts.append(_entry(root, _HOME.get(name, module), module, name))
    return "".join(parts)


def _entry(root: Path, home: str, module: str, name: str) -> str:
    definition = _definition(root, home, name)
    text = ast.get_docstring(definition) or ""
    parts = [
        f"\n### {module}.{name}\n\n```text\n{name}{_arguments(definition)}\n```\n\n",
        _markdown(text),
    ]
    if isinstance(definition, ast.ClassDef):
        for method in definition.body:
            public = isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
            if public and (said := ast.get_docstring(method)):
                parts.append(f"\n**`{method.name}{_arguments(method)}`**\n\n{_markdown(said)}")
    return "".join(parts)


def _tree(root: Path, module: str) -> ast.Module:
    path = root.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text())


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _definition(root: Path, module: str, name: str) -> _Definition:
    """Where a name is defined, which may be in a module that it is imported from (LookupError: nowhere)."""
    tree = _tree(root, module)
    guarded = [node for block in tree.body if isinstance(block, ast.With) for node in block.body]
    for node in (*tree.body, *guarded):
        if isinstance(node, _Definition) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition(root, node.module or "", alias.name)
    raise LookupError(f"{module} has no {name}")


def _arguments(definition: _Definition) -> str:
    if isinstance(definition, ast.ClassDef):
        makers = [
            node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"
        ]
        return _arguments(makers[0]) if makers else "()"
    arguments = definition.args
    if arguments.args and arguments.args[0].arg in {"self", "cls"}:
        arguments.args = arguments.args[1:]
    words = f"({ast.unparse(arguments)})"
    if len(words) > 88:
        pieces = re.split(r", (?![^\[\(]*[\]\)])", ast.unparse(arguments))
        words = "(\n" + "".join(f"    {piece},\n" for piece in pieces) + ")"
    return words


def _markdown(text: str) -> str:
    """A docstring in Google's style, as Markdown."""
    parts = []
    for section in re.split(r"\n\n(?=\S)", text):
        name, _, rest = section.partition(":\n")
        parts.append(_section(name, rest) if name in _SECTIONS else section)
    return "\n\n".join(parts) + "\n"


def _section(name: str, text: str) -> str:
    lines = [f"**{name}**", ""]
    for item in re.split(r"\n(?=\S)", textwrap.dedent(text)):
        word, colon, said = item.partition(":")
        said = " ".join(said.split())
        is_item = name != "Returns" and colon and " " not in word
        lines.append(f"- `{word}`: {said}" if is_item else " ".join(item.split()))
    return "\n".join(lines)
