"""Benchmarks of `evenpace lab bench` in small: each runs to its end, and writes figures that can be."""

import json
import math

import pytest

from lab.bench import micro_batches
from tests.evenpace.commands import invoke


def numbers(figures, key=""):
    """Yield all numbers of figures, each with the key that it stands under."""
    if isinstance(figures, dict):
        for own, value in figures.items():
            yield from numbers(value, own)
    elif isinstance(figures, list):
        for value in figures:
            yield from numbers(value, key)
    elif isinstance(figures, int | float) and not isinstance(figures, bool):
        yield key, figures


def figures_of(tmp_path, *words):
    """Run a benchmark, and return what it writes and prints."""
    path = tmp_path / "figures.json"
    done = invoke("lab", "bench", *words, "--json", path, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(path.read_text()), done.output


@pytest.mark.release
@pytest.mark.parametrize(
    ("line", "keys", "shown"),
    [
        (
            "groups --parameters 20000 --workers 2 --turns 2 --repeats 1",
            {"cost_s", "join", "drain", "kill", "kill-while-forming", "meet", "connect", "stock_s"},
            "stock DDP",
        ),
        ("micro-batches --number 4 --iterations 3 --memory 2,4", {"plain_s", "plain_bytes"}, "digits"),
        ("noise --repeats 1", {"ResNet-32", "transformer", "micro-batches"}, "transformer"),
        ("noise --repeats 1 --adam", {"ResNet-32", "transformer", "micro-batches"}, "transformer"),
        ("overlap --layers 2 --shards 1 --rate 60 --repeats 1 --iterations 8", {"transfer_s"}, "DDP"),
        ("shards --shards 1,2 --workers 2 --mib 1 --rate 4 --repeats 2", {"ideal_s", "median_s"}, "push"),
        ("solver --devices 5 --micro-batches 40 --repeats 2", {"median", "max"}, "40"),
    ],
)
def test_a_benchmark_writes_figures_that_can_be(tmp_path, monkeypatch, request, line, keys, shown):
    """All that it measures is there, and finite, and what takes time takes some."""
    if "--rate" in line:
        request.getfixturevalue("needs_network")
    monkeypatch.setattr(micro_batches, "_CASES", (("digits", ("--batch-norm",), (4,)),))
    monkeypatch.setattr(micro_batches, "_MEMORY", ("transformer", (), 4))
    figures, output = figures_of(tmp_path, *line.split())
    text = json.dumps(figures)
    assert all(f'"{key}"' in text for key in keys)
    assert shown in output
    for key, value in numbers(figures):
        assert math.isfinite(value), key
        assert value > 0 or not key.endswith(("_s", "seconds", "median")) or key == "cost_s", key
