"""The documents as tests see them: blocks of code, each with what a comment before it says about running it.

A comment `<!-- run: ... -->` before a block holds directives, separated by semicolons:

- `background`: a terminal of its own, which goes on until the page's end; services in it are waited for until
  they listen;
- `until TEXT`: with `background`, waited for until this is printed;
- `terminals`: each line in a terminal of its own, as `background` where it starts a service; the others must
  end well;
- `ctrl-c`: before it, Ctrl-C is pressed in each terminal where a command goes on; none may go on then;
- `expect N`: ends with this status;
- `on ADDRESS`: typed on the machine with this address;
- `file NAME`: not run, but written to this file, for the blocks that follow;
- `new`: a new Python program begins;
- `prints`: of a block `text`: each of these lines has been printed on the page so far, as often as it stands
  here, whatever their order, and whatever stands for `...`; numbers are the same;
- `within N% after WORD WORD ...`: with `prints`: but for numbers right after one of these words, which were
  measured: they may be so much larger or smaller;
- `skip REASON`: not run, for a reason of `REASONS`.

A comment with more lines, whose first says `python` or `bash` before the directives, is itself a block, which
readers do not see: what must be there for the blocks beside it to run.

This module must not know how blocks are run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from tests import ROOT

DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part in {"runs", "build"} for part in path.relative_to(ROOT).parts)
]
RUN = ("bash", "python")
SHOWN = ("text", "yaml", "ini", "json", "promql", "thrift")
DIRECTIVES = {
    "background",
    "until",
    "terminals",
    "ctrl-c",
    "expect",
    "on",
    "file",
    "new",
    "prints",
    "within",
    "skip",
}
REASONS = (
    r"needs a GPU",
    r"needs torchft",
    r"needs several machines",
    r"needs published traces; run by (?P<of_traces>\S+)",
    r"needs a container engine; run by (?P<tests>\S+)",
    r"takes longer than a minute; run by (?P<others>\S+(?: and \S+)*)",
)

_COMMENT = re.compile(r"<!-- run: (.*?)-->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Block of code in a document."""

    path: Path  # the document
    line: int  # where its text begins, counted from 1
    language: str  # what it is marked with
    text: str  # without indentation
    directives: Mapping[str, str] = field(default_factory=dict)  # as in the comment before it
    hidden: bool = False  # whether readers do not see it

    @property
    def place(self) -> str:
        """Return the block's place for messages, as in `docs/data.md:17`."""
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Return whether the tests run the block."""
        return self.language in RUN and not {"skip", "file"} & set(self.directives)

    def tolerances(self) -> dict[str, float]:
        """Return the tolerances of `prints`: by word, that of the number after it, as a share of it."""
        share, _, words = self.directives.get("within", "0% after").partition("% after")
        return dict.fromkeys(words.split(), float(share) / 100)


def blocks(path: Path) -> list[Block]:
    """The blocks of a document, in order (ValueError: a comment is wrong, or what follows it is no block)."""
    found: list[Block] = []
    said: dict[str, str] | None = None
    for token in MarkdownIt("commonmark").parse(path.read_text()):
        if not token.map:
            continue
        line = token.map[0] + 1
        if token.type == "fence":
            found.append(Block(path, line + 1, token.info.strip(), token.content, said or {}))
            said = None
        elif token.type == "html_block":
            for head in _COMMENT.findall(token.content):
                if said is not None:
                    raise ValueError(f"{path}:{line}: no block between this comment and the one before")
                words, _, text = head.partition("\n")
                if text.strip():
                    language, _, words = words.strip().partition(" ")
                    found.append(Block(path, line + 1, language, text, _directives(words, path, line), True))
                else:
                    said = _directives(words, path, line)
        elif token.type == "code_block":
            raise ValueError(f"{path}:{line}: an indented block says not what language it is in")
        elif said is not None and token.type not in {"list_item_open", "paragraph_close"}:
            raise ValueError(f"{path}:{line}: no block follows the comment before this line")
    return found


def fenced(path: Path, language: str) -> list[str]:
    """The blocks of a document that are marked with a language and that readers see."""
    return [block.text for block in blocks(path) if block.language == language and not block.hidden]


def _directives(words: str, path: Path, line: int) -> dict[str, str]:
    if words.strip().startswith("skip "):
        return {"skip": words.strip().removeprefix("skip ")}
    pairs = [word.strip().partition(" ") for word in words.split(";") if word.strip()]
    if unknown := {name for name, _, _ in pairs} - DIRECTIVES:
        raise ValueError(
            f"{path}:{line}: {', '.join(unknown)}: directives are {', '.join(sorted(DIRECTIVES))}"
        )
    return {name: value for name, _, value in pairs}
