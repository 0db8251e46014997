"""Errors of writing name the file, wherever one is written."""

import errno

import numpy as np
import pytest

from batchsize_manager.learning.saved_models import save_models
from evenpace.reports import files
from rpc.tokens import write_secret
from tests.disks import fill

WRITERS = {
    "report": lambda path: files.replace(path, bytes(2**20)),
    "room": lambda path: files.check_room(path, 2**20),
    "secret": lambda path: write_secret(path, bytes(2**20)),
    "models": lambda path: save_models(path, {"arx": {"w": {"x": np.zeros(2**17)}}}),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_an_error_of_writing_names_the_file(small_disk, writer):
    """It does not name a draft, nor nothing, and no draft is left."""
    path = small_disk / "file"
    fill(small_disk / "ballast")
    with pytest.raises(OSError, match="No space left") as raised:
        WRITERS[writer](path)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    assert [one.name for one in small_disk.iterdir()] == ["ballast"]
