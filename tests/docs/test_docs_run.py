"""Every command and every piece of Python in the documents does what it says."""

import contextlib

import pytest

from tests import zygote
from tests.docs.documents import DOCUMENTS, ROOT, blocks
from tests.docs.loopback import own_network
from tests.docs.walkthrough import Page, not_printed
from tests.scripts import terminal_shell

RUNNABLE = [path for path in DOCUMENTS if any(block.runs for block in blocks(path))]
FIRST = ("README", "CONTRIBUTING", "architecture", "troubleshooting")  # those that `make test` follows, too
# What the programs of a document import, which PyTorch's processes do not have.
IMPORTED = {"keras": ("evenpace.keras", "batchsize_manager.service", "ps.service")}
PRINTED = """\
listening on 127.0.0.1:4300
2026-01-01 INFO job default: w1 joined, for iteration 10 on
epoch 1: 199 samples, loss 0.612
epoch 1: 199 samples, loss 0.7
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in FIRST else pytest.mark.ci) for path in RUNNABLE],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_the_document_can_be_followed(path, tmp_path):
    """All blocks of a document run, in order, as they stand there."""
    with contextlib.ExitStack() as stack:
        if path.stem in IMPORTED:
            stack.enter_context(zygote.installed(IMPORTED[path.stem], terminal_shell.__name__))
        Page(blocks(path), tmp_path, stack.enter_context(own_network())).run()


@pytest.mark.parametrize(
    "line",
    [
        "listening on 127.0.0.1:4301",
        "listening on 127.0.0.1:430",
        "listening on 127.0.0",
        "joined, for iteration 1",
        "joined, for iteration 0",
        "epoch 2: 199 samples, loss 0.612",
        "epoch 1: 198 samples, loss 0.612",
        "epoch 1: 199 samples, loss 0.65",
        "epoch 1: 199 samples, loss 0.575",
        "listening on 127.0.0.1:4300\nlistening on 127.0.0.1:4300",
    ],
)
def test_a_wrong_number_in_a_document_is_found(line):
    """A number that was not printed, or is too far from what was measured, or stands there too often."""
    assert not_printed(line, PRINTED, {"loss": 0.05})
