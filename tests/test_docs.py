"""The documents: links lead somewhere, commands and examples work."""

import re
import shlex
import textwrap
from pathlib import Path

import click
import pytest

from batchsize_manager.policies import Member, Observation
from batchsize_manager.rounding import Bounds
from evenpace.cli import cli

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    path
    for path in sorted(ROOT.rglob("*.md"))
    if not any(part.startswith(".") or part in {"runs", "build"} for part in path.relative_to(ROOT).parts)
]


def fenced(path, language):
    """The fenced blocks of a document that are marked with a language, without their indentation."""
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```", path.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


def commands():
    """Every command line of evenpace in the documents, with the document."""
    for path in DOCUMENTS:
        for block in fenced(path, "bash"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.removesuffix("&"), comments=True)
                if words and words[0] == "evenpace":
                    yield pytest.param(words[1:], id=f"{path.name}: {line}")


def anchors(path):
    """The anchors of a document's headings, as they are made from their words."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    """Every relative link of a document names a file or folder that is there, and a heading in it."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("words", list(commands()))
def test_commands_parse(words):
    """Every command line that the documents show names a command and options that there are."""
    command, arguments = cli, list(words)
    while isinstance(command, click.Group):
        name = arguments.pop(0)
        command = command.commands[name]
    context = command.make_context(name, arguments)
    if name == "worker":  # an option that it did not know would be taken for the script
        assert context.params["script"].suffix == ".py"


def test_the_documents_show_commands():
    """There are commands to check: the README and the page on clusters show how to start all parts."""
    shown = {
        (path.name, words) for path in DOCUMENTS for words in re.findall(r"evenpace (\w+)", path.read_text())
    }
    for document in ("README.md", "cluster.md"):
        assert {(document, command) for command in ("manager", "ps", "worker")} <= shown
    assert len(list(commands())) >= 6


def test_the_readmes_lines_are_the_examples():
    """The three lines that the README quotes stand in the example, and are all that it has of evenpace."""
    (block,) = fenced(ROOT / "README.md", "python")
    quoted = [line for line in block.splitlines() if line]
    example = (ROOT / "examples" / "train_digits_evenpace.py").read_text().split('"""', 2)[2].splitlines()
    assert quoted == [line for line in example if "evenpace" in line]
    assert len(quoted) == 3


def test_the_example_of_a_policy_splits_exactly():
    """The policy in CONTRIBUTING.md follows the best speeds, and its counts sum to the batch."""
    (block,) = fenced(ROOT / "CONTRIBUTING.md", "python")
    names = {}
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    policy = names["BestSpeed"]()
    policy.set_members([Member("a", Bounds()), Member("b", Bounds()), Member("c", Bounds(maximum=20))])
    assert policy.split(100).counts == [40, 40, 20]
    policy.observe({"a": Observation(30, 1.0), "b": Observation(10, 1.0), "c": Observation(0, 0.0)})
    policy.observe({"a": Observation(30, 9.0), "b": Observation(10, 1.0), "c": Observation(20, 1.0)})
    assert policy.split(60).counts == [30, 10, 20]
    policy.set_members([Member("b", Bounds()), Member("d", Bounds())])
    for total in range(1, 200):
        assert sum(policy.split(total).counts) == total
