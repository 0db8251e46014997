"""The examples of docs/data.md: the page quotes their lines, and the stream example trains."""

import re

import pytest

from evenpace.lab.cluster import LocalCluster
from tests import ROOT
from tests.docs.documents import fenced

EXAMPLES = ROOT / "examples"
STREAM, PARTITIONS = "train_digits_stream_evenpace.py", "train_digits_partitions_evenpace.py"


def test_the_documents_lines_are_the_examples():
    """Each line of Python that the page quotes stands in an example."""
    examples = "\n".join((EXAMPLES / name).read_text() for name in (STREAM, PARTITIONS))
    examples += (EXAMPLES / "train_digits_evenpace.py").read_text()
    blocks = fenced(ROOT / "docs" / "data.md", "python")
    assert len(blocks) == 3
    for line in "".join(blocks).splitlines():
        assert line in examples.splitlines()


@pytest.mark.slow
def test_the_stream_trains_on_uneven_workers(tmp_path, wait_until):
    """Both workers of the stream example end with the same, accurate model."""
    with LocalCluster(tmp_path, workers=2) as cluster:
        for name, limit in (("large", "1000"), ("small", "20")):
            cluster.start_worker(name, EXAMPLES / STREAM, options={"--max-batch-size": limit})
        wait_until(lambda: not cluster.check(), "the end of training")
    logs = [(tmp_path / f"{name}.log").read_text() for name in ("large", "small")]
    accuracies = [float(re.search(r"accuracy ([\d.]+)%", log)[1]) for log in logs]
    assert accuracies[0] == accuracies[1] > 85
