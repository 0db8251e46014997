"""`evenpace lab bench solver`: it splits by every kind of time curves, and says how long that takes."""

import json

from tests.evenpace.commands import invoke


def test_every_kind_of_curves_is_timed(tmp_path):
    """The table and the file have the times of all kinds of curves."""
    out = tmp_path / "solver.json"
    arguments = ["--devices", "5", "--micro-batches", "40", "--repeats", "2", "--json", str(out)]
    result = invoke("lab", "bench", "solver", *arguments)

    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())
    assert (figures["devices"], figures["micro_batches"], len(figures["seconds"])) == (5, 40, 5)
    assert all(0 < seconds["median"] <= seconds["max"] for seconds in figures["seconds"].values())
    assert all(name in result.output for name in figures["seconds"])
