"""`evenpace lab bench recovery --with all-reduce` in small: real processes, whose workers come and go."""

import json

import pytest
from click.testing import CliRunner

from evenpace.cli import cli
from evenpace.lab.bench.config import GroupChangesConfig


def run(*options):
    """Run the command."""
    return CliRunner().invoke(cli, ["lab", "bench", "recovery", *options], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.release
def test_changes_and_turns_are_measured(tmp_path):
    """A change costs what its parts take at least, and a drain sends no state.

    A kill does where only one of the others has completed the reduction.
    """
    path = tmp_path / "groups.json"
    small = ("--parameters", "20000", "--workers", "2", "--turns", "2", "--repeats", "1")
    done = run("--with", "all-reduce", *small, "--json", str(path))
    assert done.exit_code == 0, done.output
    (size,) = json.loads(path.read_text())["sizes"]
    assert size["parameters"] == pytest.approx(20_000, rel=0.01)
    assert size["tensors"] == 8
    changes = size["changes"]
    assert {change: its["attempts"] for change, its in changes.items()} == {
        "join": 1,
        "drain": 1,
        "kill": 1,
        "kill-while-forming": 2,
    }
    for its in changes.values():
        assert its["costs_s"] == [its["cost_s"]]
        assert its["iteration_s"] > 0
        assert list(its["parts_s"]) == ["meet", "connect", "state", "compare"]
        assert 0 < sum(its["parts_s"].values()) < its["cost_s"] + its["iteration_s"]
    assert changes["join"]["parts_s"]["state"] > 0
    assert changes["drain"]["parts_s"]["state"] == 0
    unchanged = size["unchanged"]
    assert unchanged["stock_s"] > 0
    assert unchanged["job_cpu_s"] > unchanged["stock_cpu_s"] > 0  # norms are taken, and the manager is asked
    assert unchanged["job_s"] - unchanged["stock_s"] == pytest.approx(unchanged["cost_s"])  # of two turns
    low, middle, high = unchanged["ratio"]
    assert 0 < low <= middle <= high
    for text in ("19,880", "join", "drain", "stock DDP"):
        assert text in done.output


def test_options_of_the_other_exchange_are_refused():
    """The error names the option and the exchange."""
    done = run("--with", "all-reduce", "--shards", "2")
    assert done.exit_code == 2
    assert "--shards: has no meaning with all-reduce" in done.output
    done = run("--batch-size", "24")
    assert done.exit_code == 2
    assert "--batch-size: has no meaning with parameter-server" in done.output


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"workers": 1}, "workers 1: must be at least 2"),
        ({"workers": 4, "batch_size": 50}, "batch size 50: must be a multiple of the 4 workers"),
        ({"turns": -1}, "turns -1: must be at least 0"),
        ({"changes": ("drain", "luck")}, "changes luck: there are join, drain, kill, kill-while-forming"),
    ],
)
def test_bad_values_are_named(values, said):
    """The error says what is allowed."""
    with pytest.raises(ValueError, match=said):
        GroupChangesConfig(**values)


def test_workers_that_do_not_divide_the_batch_are_refused():
    """The check comes after both configurations were put together."""
    done = run("--with", "all-reduce", "--workers", "5")
    assert done.exit_code != 0
    assert "batch size 48: must be a multiple of the 5 workers" in done.output
