"""Options come from the fields of configurations, and configurations from the options' values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from evenpace.cli.settings import configured, option
from idl.errors import EvenpaceError
from idl.settings import Checked, Setting
from rpc.address import Address

HERE = Address("127.0.0.1", 4300)


@dataclass(frozen=True)
class Inner:
    """A configuration that is a field."""

    depth: Annotated[int, Setting("How deep.", least=1)] = 1
    hidden: Annotated[int, Setting(least=0)] = 3


@dataclass(frozen=True)
class Config(Checked):
    """A field of each kind."""

    count: Annotated[int, Setting("How many.", least=1, most=9)] = 4
    share: Annotated[float, Setting("How much.", above=0, below=1)] = 0.25
    limit: Annotated[float | None, Setting("Up to it.  [default: none]", least=0)] = None
    nbytes: Annotated[int, Setting("How large.", name="mib", least=1, unit=2**20)] = 2**21
    swift: Annotated[bool, Setting("Or slow.")] = False
    safe: Annotated[bool, Setting("Or not.")] = True
    policy: Annotated[str, Setting("", choices={"even": 1, "learned": 2})] = "even"
    kind: Annotated[Literal["auto", "cgroup"], Setting("Of limit.")] = "auto"
    where: Annotated[Address, Setting("It listens.", name="listen")] = HERE
    shards: Annotated[tuple[Address, ...], Setting("May be repeated.", name="ps")] = ()
    folder: Annotated[Path | None, Setting("State.", folder=True)] = None
    file: Annotated[Path | None, Setting("Key.", folder=False, exists=True)] = None
    address: Annotated[str | None, Setting("Of traces.", metavar="URL")] = None
    sizes: Annotated[
        tuple[int, ...],
        Setting("Of each.", metavar="COUNT,...", least=1, read=lambda text: tuple(map(int, text.split(",")))),
    ] = (3, 4)
    phase: Annotated[tuple[int, int], Setting("Its ends.", metavar="FIRST LAST", least=1)] = (1, 5)
    made: Annotated[str, Setting("A name.")] = field(default_factory=lambda: "made")
    inner: Inner = field(default_factory=lambda: Inner(depth=2, hidden=7))
    other: int = 5


def run(*arguments, decorate=None):
    """Run a command with the options of `Config`: its result, and the configuration that it was given."""
    given = []

    @click.command()
    @(decorate or configured(Config, "config"))
    def command(**values):
        given.append(values)

    return CliRunner().invoke(command, list(map(str, arguments)), terminal_width=200), given


def test_every_kind_of_field_takes_its_option(tmp_path):
    """The command is given one value, of the field's type."""
    file = tmp_path / "key"
    file.write_text("")
    options = (
        *("--count", 9, "--share", 0.5, "--limit", 7, "--mib", 3, "--swift", "--no-safe"),
        *("--policy", "learned", "--kind", "cgroup", "--listen", "[::1]:1", "--ps", "a:1", "--ps", "b:2"),
        *("--folder", tmp_path, "--file", file, "--address", "x", "--sizes", "5,6"),
        *("--phase", 2, 3),
        *("--made", "y", "--depth", 6),
    )
    result, given = run(*options)
    assert result.exit_code == 0, result.output
    assert given == [
        {
            "config": Config(
                *(9, 0.5, 7.0, 3 * 2**20, True, False, "learned", "cgroup", Address("::1", 1)),
                *((Address("a", 1), Address("b", 2)), tmp_path, file, "x", (5, 6), (2, 3), "y", Inner(6, 7)),
            )
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--count", "0"), "0 is not in the range 1<=x<=9"),
        (("--depth", "0"), "0 is not in the range x>=1"),
        (("--policy", "odd"), "'odd' is not one of 'even', 'learned'"),
        (("--kind", "odd"), "'odd' is not one of 'auto', 'cgroup'"),
        (("--folder", __file__), f"Directory '{__file__}' is a file"),
        (("--file", str(Path(__file__).parent)), "is a directory"),
        (("--file", "/nowhere"), "File '/nowhere' does not exist"),
        (("--other", "1"), "No such option"),
        (("--hidden", "1"), "No such option"),
    ],
)
def test_what_a_field_does_not_allow_is_refused(arguments, said):
    """By the command line, with the option's name."""
    result, given = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert arguments[0] in result.output
    assert not given


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--listen", "nowhere"), "address 'nowhere': give HOST:PORT"),
        (("--limit", "nan"), "limit nan: must"),
        (("--sizes", "3,x"), "invalid literal for int() with base 10: 'x'"),
        (("--sizes", "3,0"), "sizes 0: must be at least 1"),
    ],
)
def test_what_only_the_value_can_check_is_told_in_its_words(arguments, said):
    """As an error of ours."""
    result, _ = run(*arguments)
    assert isinstance(result.exception, EvenpaceError)
    assert said in str(result.exception)


def test_the_help_says_what_the_field_says():
    """Its help, its default in the option's unit, and its bounds."""
    lines = {" ".join(text.split()) for text in run("--help")[0].output.splitlines()}
    assert {
        "--count INTEGER RANGE How many. [default: 4; 1<=x<=9]",
        "--share FLOAT RANGE How much. [default: 0.25; 0<x<1]",
        "--mib INTEGER RANGE How large. [default: 2; x>=1]",
        "--swift Or slow.",
        "--policy [even|learned] [default: even]",
        "--listen HOST:PORT It listens. [default: 127.0.0.1:4300]",
        "--ps HOST:PORT May be repeated.",
        "--folder DIRECTORY State.",
        "--sizes COUNT,... Of each. [default: 3,4]",
        "--depth INTEGER RANGE How deep. [default: 2; x>=1]",
    } <= lines


def test_a_command_may_leave_fields_out_and_have_defaults_of_its_own():
    """Those left out are as by default; None leaves the field as it is by default, and is not shown."""
    decorate = configured(Config, "config", without=("count", "inner"), share=0.5, made="ours", nbytes=None)
    result, given = run(decorate=decorate)
    assert result.exit_code == 0, result.output
    assert given == [{"config": Config(share=0.5, made="ours")}]
    shown = run("--help", decorate=decorate)[0].output
    assert "[default: ours]" in shown
    assert "--count" not in shown
    assert "--depth" not in shown
    assert "How large.  [x>=1]" in shown


def test_one_option_alone_goes_to_the_command():
    """With another default and another help."""
    decorate = option(Config, "count", 7, "Here.")
    assert run(decorate=decorate)[1] == [{"count": 7}]
    assert "Here.  [default: 7; 1<=x<=9]" in run("--help", decorate=decorate)[0].output


def test_a_field_without_a_default_is_a_required_option():
    """The command cannot be called without."""

    @dataclass
    class Needy:
        """Needs a name."""

        name: Annotated[str, Setting("A name.")]

    decorate = configured(Needy, "config")
    assert "Missing option '--name'" in run(decorate=decorate)[0].output
    assert run("--name", "x", decorate=decorate)[1] == [{"config": Needy("x")}]
