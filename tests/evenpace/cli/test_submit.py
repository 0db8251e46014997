"""Mistakes with `evenpace submit`: each is a clear error before any cluster is reached or started."""

import pytest

from scheduler.ray import cluster
from tests.evenpace.commands import invoke


class ReachedError(Exception):
    """A cluster would have been reached, or started."""


@pytest.fixture
def submit(tmp_path, monkeypatch):
    """A function that runs `evenpace submit` in a folder with a script, without any cluster."""

    def connection(*arguments, **options):
        raise ReachedError

    monkeypatch.setattr(cluster, "connection", connection)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "train.py").write_text("")
    return lambda *words: invoke("submit", *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing.py"], "training script 'missing.py': no such file"),
        (["--working-dir", "inner", "other.py"], "training script 'inner/other.py': no such file"),
        (["--working-dir", "nowhere", "train.py"], "'nowhere' does not exist"),
        ([], "Missing argument 'SCRIPT'"),
        (["--workers", "many", "train.py"], "workers 'many': must be a number from 1 on, or LEAST:MOST"),
        (["--fixed-group", "train.py"], "a fixed group: only with all-reduce"),
        (["--shards", "2", "--all-reduce", "train.py"], "give --shards or --all-reduce, not both"),
        (["--detach", "train.py"], "--detach needs --address"),
        (
            ["--http", "0.0.0.0:4380", "train.py"],
            "others could reach the page at 0.0.0.0:4380 without TLS: choose an address of 127.0.0.1",
        ),
        (["--http", "127.0.0.1:0", "--detach", "--address", "a:1", "train.py"], "give --detach or --http"),
        (["--manager-options", "--bogus 3", "train.py"], "No such option"),
        (["--ps-options", "--help", "train.py"], "No such option"),
        (["--ps-options", "--help-all", "train.py"], "No such option"),
        (["--ps-options", "--state 'a", "train.py"], '"--state \'a": No closing quotation'),
        (["--env", "MODE", "train.py"], "env 'MODE': must be NAME=VALUE"),
        (["--resource", "place=many", "train.py"], "resource place=many: must be a number from 0 on"),
    ],
)
def test_a_mistake_is_named_before_anything_is_started(submit, words, message):
    """The error is one of the user's, has what was wrong, and no traceback; no cluster was reached."""
    done = submit(*words)
    assert done.exit_code in (1, 2), done.output
    assert message in done.output
    assert "Error: " in done.output
    assert isinstance(done.exception, SystemExit), "not a traceback, nor a cluster"


@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--bogus", "--workers", "many"],
        ["--workers", "2:8", "--shards", "3", "train.py"],
        ["--all-reduce", "--workers", "3", "train.py"],
        ["--working-dir", "inner", "train.py"],
        ["--detach", "--address", "10.0.0.1:6379", "train.py"],
        ["--env", "A=1=2", "--env", "B=", "--manager-options", "--sync ssp --staleness 2", "train.py"],
    ],
)
def test_what_is_right_goes_on_to_the_cluster(submit, words):
    """Without a mistake, the next step is the cluster; what follows the script is the script's own."""
    assert isinstance(submit(*words).exception, ReachedError)
