"""The documentation site: built strictly, for readers without a network, and complete."""

import os
import re
import subprocess
import sys
from html import unescape

import click
import pytest

import idl
from evenpace.metrics.catalogue import METRICS
from tests.docs.documents import ROOT
from tests.evenpace.commands import all_commands

pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")


pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, in a folder."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, (
        built.stderr
    )  # a broken link or anchor is a warning, and ends a strict build
    return folder


def text(page):
    """Return the text that a reader sees of a page."""
    return unescape(re.sub(r"<[^>]+>", "", page.read_text()))


def test_nothing_is_fetched_from_elsewhere(site):
    """No page names a script, style, font or picture of another host."""
    for page in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text()):
            assert not re.search(r'(?:src|href)="?(?:https?:)?//', tag), (page.name, tag)
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )['\"]?(?:https?:)?//", style.read_text()), style.name


def test_every_option_of_every_command_is_there(site):
    """The page of commands has each command that --help names, and each of its options."""
    page = text(site / "commands.html")
    for words, command in all_commands():
        name = " ".join(words)
        assert name in page
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len) in page, f"{name} {option.opts}"


def test_the_whole_wire_contract_is_there(site):
    """The page of the wire contract has each struct with each of its fields, and each method."""
    page = text(site / "wire-contract.html")
    for module in (idl.common, idl.batchsize_manager, idl.parameter_server, idl.data_partition):
        for service in module.__thrift_meta__["services"]:
            assert f"service {service.__name__}" in page
            for method in service.thrift_services:
                assert re.search(rf"\b{method}\(", page), method
        for struct in module.__thrift_meta__["structs"]:
            assert f"struct {struct.__name__}" in page
            for field in struct.thrift_spec.values():
                assert re.search(rf"\b{field[1]}\b", page), field[1]


def test_all_metrics_are_there(site):
    """The page of metrics has a row for each of the catalogue, with its meaning."""
    page = text(site / "metrics.html")
    rows = [line.strip() for line in page.splitlines() if line.strip().startswith("evenpace_")]
    assert rows == [metric.shown for metric in METRICS.values()]
    assert all(metric.meaning in page for metric in METRICS.values())


def test_the_python_api_is_there(site):
    """The page of the Python API has all that users import, with arguments and docstrings."""
    page = text(site / "python-api.html")
    for name in ("connect", "torch.DataLoader", "torch.distribute", "keras.DataLoader", "jax.value_and_grad"):
        assert f"evenpace.{name}" in page
    for argument in ("shuffle", "momentum", "reduction"):
        assert argument in page


def test_what_only_tests_read_is_left_out(site):
    """Comments that say how a block is run are on no page."""
    for page in site.glob("*.html"):
        assert "<!-- run:" not in page.read_text(), page.name


def test_the_search_knows_the_pages(site):
    """The search's index has the words of the documents, and not those of the sources that are shown."""
    index = (site / "search" / "search_index.json").read_text()
    assert "straggler" in index
    assert "source/" not in index
