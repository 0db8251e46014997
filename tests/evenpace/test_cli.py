"""The command line, as a user meets it."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from evenpace.cli import cli
from evenpace.cli.sections import LongCommand
from tests import EXAMPLES, ROOT
from tests.evenpace.commands import all_commands, evenpace, invoke, python
from tests.scripts import run_alone

COMMANDS = [
    *("run", "manager", "ps", "worker", "submit", "attach", "health", "demo"),
    *(f"lab bench {name}" for name in ("rpc", "ps", "recovery", "nodes", "spot", "predictors")),
    *("certs init", "certs issue", "certs show", "token new-key", "token issue"),
    *("lab trace live", "lab trace usage", "lab trace contention"),
    *("job drain", "job resize"),
    *(f"lab experiment {name}" for name in ("contention", "table3", "fig9", "fig10", "fig11")),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command):
    """The help of each command ends with an example of it."""
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example:\n    evenpace {command} " in result.output


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["0"], "0 is not in the range x>=1"),
        (["2", "--manager", "127.0.0.1:1", "--address", "auto"], "give the one that runs the job"),
        (["2", "--address", "127.0.0.1:1", "--drain", "w1"], "on Ray, the workers with the highest numbers"),
    ],
)
def test_a_job_is_resized_at_its_manager_or_on_ray(options, why):
    """Either option tells where it is, but not both; a number below 1 is refused at once."""
    result = invoke("job", "resize", "digits", *options)
    assert (result.exit_code, why in result.output) == (2, True), result.output


FIRST_JOB = """
import sys, torch
from evenpace import cli, serve
from idl.optimizers import OPTIMIZERS
from ps.optimizers import make_optimizer

def open_jobs(*arguments):
    before = set(sys.modules)
    for name in OPTIMIZERS:
        parameters = torch.zeros(1)
        parameters.grad = torch.ones(1)
        make_optimizer(name, [parameters], [{"lr": 0.1}]).step()
    print("imported:", sorted(set(sys.modules) - before))

serve.serve = open_jobs
cli.cli(["ps", "--listen", "127.0.0.1:0"])
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("modules", "library"),
    [
        ("evenpace.cli, batchsize_manager.service", "prom"),
        ("evenpace.cli, evenpace.serve, evenpace.context", "opentelemetry"),
    ],
)
def test_what_is_not_asked_for_is_not_imported(modules, library):
    """Without metrics and traces, no part loads the libraries for them."""
    code = f"import sys, {modules}; print([name for name in sys.modules if {library!r} in name])"
    done = python("-c", code, cwd=ROOT)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.ci
def test_a_shard_has_imported_all_that_jobs_need_when_it_begins_to_serve():
    """An import of seconds at a job's opening would hold up whoever else speaks to the shard."""
    done = python("-c", FIRST_JOB, cwd=ROOT)

    assert done.stdout == "imported: []\n", done.stderr


def test_a_help_fits_on_a_screen():
    """Of a command with many options it has the common ones, and says how all are shown."""
    for words, command in all_commands():
        output = invoke(*words[1:], "--help", columns=80).output
        if isinstance(command, LongCommand):
            assert len(output.splitlines()) <= 50, words
            assert output.splitlines()[-1].startswith("  --help-all ")
        else:
            assert len(output.splitlines()) <= 60, words


@pytest.mark.parametrize("name", ["manager", "ps", "worker"])
def test_each_option_of_a_service_is_in_a_section(name):
    """The last section, which is for what no other has, has nothing but the helps."""
    output = invoke(name, "--help-all").output
    head, _, rest = output.partition("\nOptions:\n")
    assert re.findall(r"  (?:-h, )?(--[a-z-]+)", rest) == ["--help", "--help-all"]
    for option in cli.get_command(click.Context(cli), name).params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        assert len(re.findall(rf"^  {option.opts[0]}\b(?!-)", head, re.M)) == 1, option.opts


@pytest.mark.parametrize("name", ["worker.py", "rpc/__init__.py"])
def test_a_module_that_hides_ours_is_named(tmp_path, name):
    """`import evenpace` beside a module by the name of one of our packages says which file hides it."""
    hiding = tmp_path / name
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("")
    (tmp_path / "train.py").write_text("import evenpace\n")
    done = python("train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert str(hiding) in done.stderr
    assert "rename it" in done.stderr


@pytest.mark.slow
def test_a_worker_refuses_a_script_beside_such_a_module(tmp_path):
    """`evenpace worker` says so, too, before it runs the script."""
    (tmp_path / "worker.py").write_text("")
    (tmp_path / "train.py").write_text("raise SystemExit(7)\n")
    command = [Path(sys.executable).with_name("evenpace"), "worker", "--manager", "127.0.0.1:1", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert "worker.py has the name of evenpace's own package 'worker'" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bogus"], "No such option"),
        (["--ps", "127.0.0.1:99999"], "'127.0.0.1:99999'"),
        (["--name", ""], "worker '': must be a text of 1 to 200"),
        (["--cpu-share", "9999"], "share is 9999.0; it must be above 0"),
        (["--ps", "h:1", "--min-batch-size", "9", "--max-batch-size", "5"], "maximum batch size 5"),
    ],
)
def test_wrong_options_of_a_worker_are_named(tmp_path, monkeypatch, arguments, message):
    """A wrong option is an error of one line that names it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    done = invoke("worker", *arguments, "--manager", "127.0.0.1:1", "train.py")
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert message in done.output


def test_a_scripts_own_error_keeps_its_traceback(tmp_path):
    """An error in the user's code is shown as Python shows it."""
    (tmp_path / "train.py").write_text("import sys\nraise ValueError(sys.argv[1:])\n")
    done = evenpace("worker", "--manager", "h:1", "--ps", "h:1", "train.py", "--lr", "3", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: ['--lr', '3']" in done.stderr


@pytest.mark.ci
def test_a_script_without_a_session_is_told_how_to_start(tmp_path):
    """A script that is run by itself learns of `evenpace worker`."""
    done = python("-m", run_alone.__name__, EXAMPLES / "train_digits_evenpace.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "evenpace worker --manager HOST:PORT [--ps HOST:PORT] SCRIPT" in done.stderr


def test_an_interruption_while_commands_are_imported_is_no_error():
    """Ctrl-C in the first half second ends the command with a word and the status of an interruption."""
    code = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'evenpace.cli.logs': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('evenpace', run_name='__main__')\n"
    )
    ended = python("-c", code, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (130, "Interrupted.\n")
