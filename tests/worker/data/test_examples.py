"""The examples of docs/data.md, whose lines the page quotes."""

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
