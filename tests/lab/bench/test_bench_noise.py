"""What measuring the gradient noise costs, as `evenpace lab bench noise` times it."""

import json

import pytest

from tests.evenpace.commands import invoke


@pytest.mark.release
@pytest.mark.parametrize("options", [[], ["--adam"]])
def test_every_way_is_timed_beside_an_iteration_of_each_model(tmp_path, options):
    """Shares are those of the seconds beside them; norms take less time than the passes do."""
    out = tmp_path / "noise.json"
    done = invoke("lab", "bench", "noise", "--repeats", 1, "--json", out, *options)
    assert done.exit_code == 0, done.output
    figures = json.loads(out.read_text())["models"]
    assert list(figures) == ["ResNet-32", "transformer"]
    for its in figures.values():
        assert list(its["norms"]) == ["parameter server", "ranks", "micro-batches"]
        for name, way in its["norms"].items():
            whole = its["seconds_in_micro_batches" if name == "micro-batches" else "seconds"]
            assert way["share"] == way["seconds"] / whole
            assert 0 < way["seconds"] < whole
