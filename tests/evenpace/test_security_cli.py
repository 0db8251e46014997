"""`evenpace certs` and `evenpace token`: the files that they write, their refusals, and their output."""

import time
from pathlib import Path

import pytest

from rpc import tokens
from tests.evenpace.commands import invoke

NOWHERE = ("--address", "127.0.0.1:1")  # of a Ray cluster


def evenpace(*words: str | Path) -> str:
    """Run a command in this process, and return its output; its error is raised."""
    result = invoke(*words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refusal(*words: str | Path) -> str:
    """Run a command that must fail with one clear line, and return the line."""
    result = invoke(*words)
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit)  # no other went by
    return result.output


def mode(file: Path) -> int:
    """Return a file's permissions."""
    return file.stat().st_mode & 0o777


def test_certificates_and_keys(tmp_path):
    """Keys are for their owner alone; `show` prints a certificate's owner, hosts and expiry."""
    folder = tmp_path / "secrets"
    evenpace("certs", "init", folder, "--days", "30")
    evenpace("certs", "issue", folder, "manager", "--host", "10.0.0.1", "--host", "m.example.org")
    evenpace("certs", "issue", folder, "w1", "--days", "3")
    for key in (folder / "ca-key.pem", folder / "manager" / "key.pem", folder / "w1" / "key.pem"):
        assert mode(key) == 0o600
    assert (folder / "w1" / "ca.pem").read_text() == (folder / "ca.pem").read_text()
    shown = evenpace("certs", "show", folder / "manager" / "certificate.pem", folder / "ca.pem")
    assert "CN=manager\n" in shown
    assert "serves as 10.0.0.1, m.example.org" in shown
    assert ", an authority" in shown
    assert "serves as" not in evenpace("certs", "show", folder / "w1" / "certificate.pem")
    assert sorted(file.name for file in folder.iterdir()) == ["ca-key.pem", "ca.pem", "manager", "w1"]


def test_nothing_is_overwritten_unasked(tmp_path):
    """A key that exists stays, unless --force is given."""
    folder = tmp_path / "secrets"
    evenpace("certs", "init", folder)
    evenpace("certs", "issue", folder, "a")
    evenpace("token", "new-key", tmp_path / "k")
    for words, file in (
        (("certs", "init", folder), folder / "ca-key.pem"),
        (("certs", "issue", folder, "a"), folder / "a" / "key.pem"),
        (("token", "new-key", tmp_path / "k"), tmp_path / "k"),
    ):
        before = file.read_bytes()
        assert "is there already; --" in refusal(*words)
        assert file.read_bytes() == before
        evenpace(*words, "--add" if words[0] == "token" else "--force")
        assert file.read_bytes() != before
        assert mode(file) == 0o600


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("certs", "issue", "{0}/none", "a"), "no certificate authority in"),
        (("certs", "issue", "{0}", "../a"), "name '../a': must be"),
        (("certs", "issue", "{0}", "a", "--host", "h:4300"), "host 'h:4300': must be"),
        (("certs", "show", "{0}/ca-key.pem"), "not a PEM file with certificates"),
        (("certs", "init", "{0}/ca.pem"), "is a file"),
        (("token", "issue", "--key", "{0}/ca.pem", "--job", "j"), "lines as of `evenpace token new-key`"),
        (("token", "issue", "--key", "{0}/k", "--job", "a/b"), "job 'a/b': must be"),
        (("token", "issue", "--key", "{0}/k", "--user", "a/b"), "user 'a/b': must be"),
        (("token", "issue", "--key", "{0}/k", "--user", "*"), "--operator issues an operator's token"),
        (("token", "issue", "--key", "{0}/k", "--user", "a", "--job", "j"), "--operator, one of them"),
        (("cluster", "status", *NOWHERE, "--token-file", "{0}/none"), "token file '{0}/none': No such file"),
        (
            ("cluster", "status", *NOWHERE, "--token-file", "{0}/k"),
            "token file '{0}/k': what was given is not a token",
        ),
        (
            ("attach", *NOWHERE, "--token-file", "{0}/j", "x"),
            "the token is for a job, and one for a user is needed",
        ),
        (
            ("job", "resize", "x", "2", *NOWHERE, "--token-file", "{0}/j"),
            "one for a user is needed",
        ),
        (("cluster", "up", *NOWHERE, "--token-key", "{0}/none"), "token keys '{0}/none': No such file"),
        (("worker", "--manager", "h:1", "--ca", "{0}/ca.pem", "x.py"), "TLS needs three files"),
        (("worker", "--manager", "h:1", "--tls", "{0}", "--ca", "{0}/ca.pem", "x.py"), "not both"),
        (("manager", "--token-key", "{0}/ca.pem"), "lines as of `evenpace token new-key`"),
        (("health", "--manager", "10.1.1.1:1", "--token-file", "{0}/k"), "in the clear"),
    ],
)
def test_mistakes_are_named(tmp_path, words, message):
    """A mistake is reported in one line, and nothing is left behind."""
    evenpace("certs", "init", tmp_path)
    evenpace("token", "new-key", tmp_path / "k")
    evenpace("token", "issue", "--key", tmp_path / "k", "--job", "j", "--out", tmp_path / "j")
    before = sorted(tmp_path.rglob("*"))
    assert message.format(tmp_path) in refusal(*(word.format(tmp_path) for word in words))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_token_goes_into_a_file_or_is_printed(tmp_path):
    """A token's file is for its owner alone, and its text is not printed then."""
    evenpace("token", "new-key", tmp_path / "k")
    said = evenpace("token", "issue", "--key", tmp_path / "k", "--job", "j", "--out", tmp_path / "t")
    text = (tmp_path / "t").read_text()
    assert text.startswith("evenpace1.")
    assert text.strip() not in said
    assert mode(tmp_path / "t") == 0o600
    assert evenpace("token", "issue", "--key", tmp_path / "k", "--job", "j").startswith("evenpace1.")


@pytest.mark.parametrize(
    ("words", "name", "whose"),
    [(("--user", "anna"), "anna", "user anna"), (("--operator",), tokens.OPERATOR, "operator")],
)
def test_tokens_of_a_shared_cluster(tmp_path, words, name, whose):
    """They are for a user or an operator, and no job's."""
    key, file = tmp_path / "k", tmp_path / "t"
    evenpace("token", "new-key", key)
    assert evenpace("token", "issue", "--key", key, *words, "--out", file) == f"token for {whose}: {file}\n"
    issued = tokens.TokenKeys(key).verify(file.read_text().strip(), time.time(), tokens.Purpose.CLUSTER)
    assert issued.name == name
