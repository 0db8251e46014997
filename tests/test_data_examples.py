"""The examples of docs/data.md: its lines are theirs, and they train on uneven workers."""

import re

import pytest

from evenpace.cluster import LocalCluster
from tests.test_docs import ROOT, fenced
from tests.test_partitioned_training import partitions_process

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
def test_the_examples_train_on_uneven_workers(tmp_path, wait_until):
    """Of each, both workers end with the same model, and a good one."""
    with partitions_process("--workers", "2") as partitions, LocalCluster(tmp_path, workers=2) as cluster:
        for part, limit in enumerate(("1000", "20")):
            for name in (STREAM, PARTITIONS):
                arguments = ["--part", str(part), "--partitions", str(partitions)]
                cluster.start_worker(
                    f"{name}-{part}",
                    EXAMPLES / name,
                    arguments if name == PARTITIONS else [],
                    options={"--max-batch-size": limit, "--job": name},
                )
        wait_until(lambda: not cluster.check(), "the end of training")
    for name in (STREAM, PARTITIONS):
        logs = [(tmp_path / f"{name}-{part}.log").read_text() for part in range(2)]
        accuracies = [float(re.search(r"accuracy ([\d.]+)%", log)[1]) for log in logs]
        assert accuracies[0] == accuracies[1] > 85
