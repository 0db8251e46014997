"""The units of systemd: valid for systemd, with commands of evenpace."""

import configparser
import shlex
import shutil
import signal
import subprocess
import sys

import pytest

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


@needs_systemd
@each_unit
@pytest.mark.parametrize("check", [("verify",), ("security", "--offline=true", "--threshold=20")])
def test_systemd_finds_nothing_wrong_with_a_unit(unit, check, tmp_path):
    """All settings and values are known to systemd, and its own rating of the unit's exposure is low."""
    path = tmp_path / unit.name
    path.write_text(unit.read_text().replace(_PROGRAM, sys.executable))  # a program that is on this machine
    done = subprocess.run(
        ["systemd-analyze", *check, str(path)], capture_output=True, text=True, check=False, timeout=240
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert check[0] == "security" or unit.name not in said, said


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
    program, *words = shlex.split(line)
    assert program == _PROGRAM
    words[words.index("--listen") + 1] = "127.0.0.1:0"
    with subprocess.Popen(
        [sys.executable, "-m", "evenpace", *words],
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
