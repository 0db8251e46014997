"""The units of systemd: valid for systemd, with commands of evenpace."""

import configparser
import shlex
import shutil
import signal
import subprocess
import sys

import click
import pytest

from evenpace.cli import cli
from rpc import certificates, tokens
from rpc.processes import LISTENING, end_process
from tests.docs.documents import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
_PROGRAM = "/opt/evenpace/bin/evenpace"
each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def service(unit):
    """Return the settings of a unit's service; ExecStart as words."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(unit.read_text().replace("\\\n", " "))
    settings = dict(parser["Service"])
    return settings | {"ExecStart": shlex.split(settings["ExecStart"])}


@pytest.fixture
def here(tmp_path):
    """A function that copies a unit, with a program that is on this machine."""

    def copy(unit):
        path = tmp_path / unit.name
        path.write_text(unit.read_text().replace(_PROGRAM, sys.executable))
        return path

    return copy


@needs_systemd
@each_unit
def test_systemd_finds_nothing_wrong_with_a_unit(unit, here):
    """All sections, settings and values are known to systemd."""
    path = here(unit)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False, timeout=240
    )
    about = [line for line in (done.stdout + done.stderr).splitlines() if unit.name in line]
    assert (done.returncode, about) == (0, [])


@needs_systemd
@each_unit
def test_a_unit_has_few_rights(unit, here):
    """Systemd's own rating of a unit's exposure is low."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(here(unit))],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@each_unit
def test_a_units_command_is_one_of_ours(unit):
    """A unit's command and all of its options are those of the real command line."""
    program, name, *arguments = service(unit)["ExecStart"]
    assert program == _PROGRAM
    command = cli.get_command(click.Context(cli), name)
    command.make_parser(click.Context(command, info_name=name)).parse_args(arguments)
    assert unit.stem == f"evenpace-{name}"


@each_unit
def test_a_units_state_is_where_it_may_write(unit):
    """The folder for --state is the one that systemd makes for the service's user, who is not root."""
    settings = service(unit)
    words = settings["ExecStart"]
    assert words[words.index("--state") + 1] == f"%S/{settings['StateDirectory']}"
    assert (settings["User"], settings["ProtectSystem"], settings["Restart"]) == (
        "evenpace",
        "strict",
        "on-failure",
    )


@pytest.mark.ci
@each_unit
def test_a_units_command_starts_and_stops(unit, tmp_path):
    """The service starts with the files that the unit names, and a stop is no failure."""
    folder = tmp_path / "evenpace"
    certificates.create_authority(folder, 10)
    name = unit.stem.removeprefix("evenpace-")
    certificates.issue(folder, name, ["127.0.0.1"], 10)
    tokens.write_new_key(folder / "tokens.key", add=False)
    line = shlex.join(service(unit)["ExecStart"]).replace("/etc/evenpace", str(folder))
    line = line.replace("%S", str(tmp_path / "state"))
    words = shlex.split(line)
    words[words.index("--listen") + 1] = "127.0.0.1:0"
    with subprocess.Popen(
        [sys.executable, "-m", "evenpace", *words[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said = process.stdout.readline()
            assert said.startswith(LISTENING), process.stderr.read()
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0
        finally:
            end_process(process)
    assert any((tmp_path / "state").rglob("*")), "nothing was kept"
