"""The documents: links lead somewhere, commands and examples work."""

import re
import shlex
from urllib.parse import urlsplit

import click
import pytest

from batchsize_manager.policies import Participant
from evenpace.cli import cli
from idl.bounds import Bounds
from idl.records import WorkerRecord
from tests.docs.documents import DOCUMENTS, REASONS, ROOT, RUN, SHOWN, blocks, fenced
from tests.evenpace.commands import all_commands


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


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_readmes_first_screen_names_both_commands(command):
    """Each stands there with the time that it takes, and is a target of the Makefile."""
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:32])
    assert re.search(rf"^\| `make {command}` \|.*\| \d+ minutes.*\|$", screen, re.MULTILINE)
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


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
    command, name, arguments = cli, "evenpace", list(words)
    while isinstance(command, click.Group):
        if arguments == ["--help"]:
            return
        group = click.Context(command, info_name=name)
        arguments = command.make_parser(group).parse_args(arguments)[
            1
        ]  # what follows the group's own options
        name = arguments.pop(0)
        command = command.get_command(group, name)
    context = command.make_context(name, arguments)
    if name == "worker":  # an option that it did not know would be taken for the script
        assert context.params["script"].suffix == ".py"


def test_options_in_the_text_exist():
    """Each `--an-option` in the documents is an option of some command of evenpace."""
    ours = {"--help", "--help-all"}
    for _, command in all_commands():
        ours |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        quoted = set(re.findall(r"`(--[a-z][a-z-]+)", path.read_text()))
        assert quoted <= ours, path.name


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
    policy.set_members(
        [Participant("a", Bounds()), Participant("b", Bounds()), Participant("c", Bounds(maximum=20))]
    )
    assert policy.split(100).counts == [40, 40, 20]
    policy.observe({"a": WorkerRecord(30, 1.0), "b": WorkerRecord(10, 1.0), "c": WorkerRecord(0, 0.0)})
    policy.observe({"a": WorkerRecord(30, 9.0), "b": WorkerRecord(10, 1.0), "c": WorkerRecord(20, 1.0)})
    assert policy.split(60).counts == [30, 10, 20]
    policy.set_members([Participant("b", Bounds()), Participant("d", Bounds())])
    for total in range(1, 200):
        assert sum(policy.split(total).counts) == total


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_block_says_what_it_is(path):
    """Every block of a document is in a language that tests run, or one that is shown only."""
    for block in blocks(path):
        assert block.language in (*RUN, *SHOWN), block.place


def test_a_block_is_skipped_for_a_good_reason_only(capsys):
    """A block that tests do not run gives a reason from a short list, and a test that runs a similar one."""
    found = [block for path in DOCUMENTS for block in blocks(path) if block.language in RUN]
    skipped = [block for block in found if "skip" in block.directives]
    for block in skipped:
        reason = block.directives["skip"]
        matches = [match for pattern in REASONS if (match := re.fullmatch(pattern, reason))]
        assert matches, f"{block.place}: {reason}"
        for names in matches[0].groupdict().values():
            for name in names.split(" and "):
                path, _, function = name.partition("::")
                assert not function or f"def {function}(" in (ROOT / path).read_text(), (
                    f"{block.place}: {name}"
                )
                assert (ROOT / path).is_file(), f"{block.place}: {name}"
    with capsys.disabled():
        click.echo(
            f"\n{len(found)} blocks of commands and Python in the documents; {len(skipped)} are not run:"
        )
        for block in skipped:
            click.echo(f"  {block.place}: {block.directives['skip']}")
    assert len(skipped) < len(found) / 2


def test_links_to_others_are_well_formed():
    """Every link that leads out of the repository is an https address; whether it answers is not asked."""
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((\w+:[^)]*)\)", path.read_text()):
            address = urlsplit(target)
            assert address.scheme == "https", target
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", address.netloc), target
            assert not re.search(r"\s", target), target
