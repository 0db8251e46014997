"""The search for planted findings by the simulation."""

import asyncio

import pytest

from tests.planted.test_planted import PLANTED, apply, copy_checkout
from tests.simulation import planted
from tests.simulation.planted import ROOT, Search, first_wrong, is_simulated, together

FOUND = 'A worker ends with "is not a member ... died: its'
NOT_FOUND = "A worker whose connection breaks while its token's"  # there are no tokens


def _findings(*rows):
    return [finding for finding in PLANTED if finding["row"] in rows]


def test_what_is_planted_at_once_is_of_unlike_files(tmp_path):
    """All changes of a group fit a checkout together; each finding that is simulated is in one group."""
    findings = [finding for finding in PLANTED if is_simulated(finding)]
    groups = together(findings, Search(tmp_path / "results", most=1))
    assert sum(map(len, groups)) == len(findings) > 80
    for group in groups:
        paths = [{change["path"] for change in finding["changes"]} for finding in group]
        assert len(set.union(*paths)) == sum(map(len, paths))


@pytest.mark.ci
def test_a_planted_finding_is_found_among_others(tmp_path):
    """By the first seed that fails with it alone; what changes nothing is not; and a search goes on."""
    findings, out = _findings(FOUND, NOT_FOUND), tmp_path / "results"
    copy_checkout(ROOT, tmp_path / "copy")
    search = Search(out, most=2)
    asyncio.run(search.search(findings, tmp_path / "copy"))
    again = Search(out, most=2)
    found, not_found = again.begin(findings[0]), again.begin(findings[1])
    assert found["found"][:2] == ["parameter-server", 1]
    assert "is not a member" in found["found"][2]
    assert not_found == {"seeds": {"parameter-server": 2, "all-reduce": 2}, "found": None}
    assert together(findings, again) == [findings[1:]]


@pytest.mark.ci
def test_a_seed_that_never_ends_is_found(tmp_path, monkeypatch):
    """What goes round in circles is ended."""
    monkeypatch.setattr(planted, "_SECONDS", 5.0)
    copy_checkout(ROOT, tmp_path)
    change = {
        "path": "tests/simulation/__main__.py",
        "before": "    failed, fired",
        "after": "    while True:\n        pass\n    failed, fired",
    }
    apply(change, tmp_path)
    assert asyncio.run(first_wrong(tmp_path, "parameter-server", range(3, 5))) == (3, "no end within 5 s")
