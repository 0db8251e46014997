"""The scripts of `examples` and of the tutorial, in jobs whose workers come and go."""

import contextlib
import re
from pathlib import Path

import pytest

from evenpace.local.cluster import LocalCluster
from tests import EXAMPLES, ROOT, zygote
from tests.docs.documents import blocks
from tests.scripts import freeze_and_run
from tests.services import is_frozen

TUTORIAL = {
    block.directives["file"]: block.text
    for block in blocks(ROOT / "docs" / "tutorial.md")
    if "file" in block.directives
}
KERAS, TENSORFLOW = (f"train_digits_{way}_evenpace.py" for way in ("keras", "tensorflow"))
# Without that of partitions, whose samples go with the worker that has them.
SCRIPTS = [
    "train_digits_evenpace.py",
    *(f"train_digits_{way}_evenpace.py" for way in ("ddp", "jax", "stream")),
]
SOURCES = TUTORIAL | {name: (EXAMPLES / name).read_text() for name in (*SCRIPTS, KERAS, TENSORFLOW)}
LATER = "14:report:0"  # in the second epoch, or a later one


def _script(name: str, folder: Path) -> Path:
    """Write a script to the folder, with fewer epochs, and return its file."""
    path = folder / name
    text, count = re.subn(r"(\(|epochs=)(15|1000)(?=[,)])", r"\g<1>6", SOURCES[name])
    assert count == 1
    path.write_text(text)
    return path


@pytest.mark.ci
@pytest.mark.parametrize(
    ("name", "late"), [*((name, name) for name in (*SCRIPTS, *TUTORIAL)), (KERAS, TENSORFLOW)]
)
def test_a_script_trains_where_a_worker_dies_and_another_joins(name, late, tmp_path, wait_until, monkeypatch):
    """The one that joins in a later epoch trains the rest, and ends with the other's accurate model."""
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    script = str(_script(name, tmp_path))
    framework = next((framework for framework in zygote.FRAMEWORKS if framework in name), None)
    options = {"--granularity": "8"} if framework == "jax" else {}  # as its script says
    with contextlib.ExitStack() as stack:
        if framework is not None:
            stack.enter_context(zygote.installed(zygote.FRAMEWORKS[framework], "worker"))
        cluster = stack.enter_context(LocalCluster(tmp_path, workers=2, shards=0 if "ddp" in name else 1))
        lasting = cluster.start_worker("w1", script, options=options)
        dying = cluster.start_worker("w2", freeze_and_run.__file__, [LATER, script], options=options)
        wait_until(lambda: is_frozen(dying.popen), "the freeze")
        joining = cluster.start_worker("w3", _script(late, tmp_path), options=options)
        wait_until(lambda: "w3 joined" in cluster["manager"].log.read_text(), "the third worker")
        dying.kill()
        wait_until(lambda: not cluster.check(gone=["w2"]), "the end of training")
        printed = [re.findall(r"accuracy ([\d.]+)%", each.log.read_text()) for each in (lasting, joining)]
        lines = joining.log.read_text()
    if name in TUTORIAL:
        assert "epoch 5:" in lines
    elif "ddp" in name:
        assert "accuracy" not in lines  # the first rank tells it
    else:
        assert printed[0] == printed[1]
        assert float(*printed[0]) > 85
