"""Every command and every piece of Python in the documents does what it says."""

import pytest

from tests.documents import DOCUMENTS, ROOT, blocks
from tests.loopback import own_network
from tests.walkthrough import Page

RUNNABLE = [path for path in DOCUMENTS if any(block.runs for block in blocks(path))]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", RUNNABLE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_document_can_be_followed(path, tmp_path):
    """All blocks of a document run, in order, as they stand there."""
    with own_network() as through:
        Page(blocks(path), tmp_path, through).run()
