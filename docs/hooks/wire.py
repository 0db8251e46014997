"""The page of the wire contract, made from the .thrift files: each definition, and its comment."""

import re
import textwrap
from pathlib import Path

_FILES = ("batchsize_manager", "parameter_server", "data_partition", "common")
_INTRODUCTION = """# The wire contract

evenpace's services speak framed [Thrift](https://thrift.apache.org) with the binary protocol, over TCP or
TLS 1.3. This page is made from the files in [idl/](source/idl.md), which any Thrift compiler takes: with them
a worker, or something that looks on, can be written in another language.
"""
_COMMENT = r"(?:/\*\*(?P<comment>(?:(?!\*/).)*)\*/\s*)?"
_DEFINITION = re.compile(
    _COMMENT + r"^(?P<code>(?P<kind>struct|exception|service|enum) (?P<name>\w+).*?^\})",
    re.DOTALL | re.MULTILINE,
)
_METHOD = re.compile(
    _COMMENT + r"^  (?P<code>[\w.]+ (?P<name>\w+)\([^)]*\)\s*throws \([^)]*\))",
    re.DOTALL | re.MULTILINE,
)


def wire_contract(root: Path) -> str:
    """The whole page, as Markdown."""
    return _INTRODUCTION + "".join(
        _file((root / "idl" / f"{name}.thrift").read_text(), name) for name in _FILES
    )


def _file(text: str, name: str) -> str:
    head = re.match(r"\s*/\*\*(.*?)\*/", text, re.DOTALL)
    parts = [f"\n## {name}.thrift\n\n", _prose(head[1] if head else "")]
    for found in _DEFINITION.finditer(text, head.end() if head else 0):
        parts += [f"\n### {found['kind']} {found['name']}\n\n", _prose(found["comment"])]
        if found["kind"] == "service":
            parts += [_method(method) for method in _METHOD.finditer(found["code"])]
        else:
            parts.append(_code(found["code"]))
    return "".join(parts)


def _method(found: re.Match[str]) -> str:
    code = textwrap.dedent("  " + found["code"])
    return f"\n#### {found['name']}\n\n{_prose(found['comment'])}{_code(code)}"


def _code(text: str) -> str:
    return f"```thrift\n{text}\n```\n"


def _prose(comment: str | None) -> str:
    """A comment as paragraphs and lists, without its stars."""
    if not comment:
        return ""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in comment.strip("\n").splitlines()]
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", "\n".join(lines).strip()):
        # A list needs a blank line before it; what hangs under an item is indented by four.
        spread = re.sub(r"(?<!\n)\n *(?=\d+\. )", "\n\n", paragraph)
        paragraphs.append(re.sub(r"^ {2,}(?!\d+\. )", "    ", spread, flags=re.MULTILINE))
    pieces = "\n\n".join(paragraphs).split("`")  # every second one is code
    pieces[::2] = [re.sub(r"([<>])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces) + "\n\n"
