"""The file of a suspended job's state."""

import contextlib
import errno
import resource
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from idl.errors import InvalidRequestError
from idl.folders import BEGUN_STATE, KEPT_STATE
from rpc.field_log import FieldLog
from worker.torch.kept_state import KeptState
from worker.torch.training_state import TrainingState


class Loader:
    """What a kept state needs of a loader.

    Args:
        own: The iteration of the checkpoint that the script has loaded itself.
    """

    def __init__(self, folder, own=None):
        training = SimpleNamespace(resumed=None if own is None else SimpleNamespace(iteration=own))
        config = SimpleNamespace(keep=folder)
        self.session = SimpleNamespace(config=config, training=training, log=FieldLog("state"))
        self.loaded = None

    def state_dict(self):
        """Return the position after 7 iterations."""
        return {"iteration": 7, "learned": b"much", "position": (0, 70)}

    def load_state_dict(self, state):
        """Take a position."""
        self.loaded = state


def kept_state(folder, seed, own=None):
    """Return a model that has made a step, its loader, and its state."""
    torch.manual_seed(seed)
    module = nn.Linear(300, 300)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(300)).sum().backward()
    optimizer.step()
    loader = Loader(folder, own)
    return module, loader, KeptState(loader, TrainingState(module, optimizer))


@contextlib.contextmanager
def full_disk():
    """Let files take some kilobytes each, less than a state does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_is_said_so_and_leaves_what_was_written_before(tmp_path):
    """PyTorch's own error would not tell; the state is written once there is room."""
    module, _, state = kept_state(tmp_path, 1)
    state.write()
    before = (tmp_path / KEPT_STATE).read_bytes()
    with full_disk(), pytest.raises(OSError, match=KEPT_STATE) as error:
        state.write()
    assert error.value.errno == errno.EFBIG
    assert [file.name for file in tmp_path.iterdir()] == [KEPT_STATE]
    assert (tmp_path / KEPT_STATE).read_bytes() == before
    (tmp_path / KEPT_STATE).rename(tmp_path / BEGUN_STATE)
    other, loader, begun = kept_state(tmp_path, 2, own=7)
    begun.find()
    begun.take()
    assert loader.loaded == loader.state_dict()
    assert torch.equal(other.weight, module.weight)


def test_the_later_one_of_a_scripts_checkpoint_and_the_kept_state_counts(tmp_path):
    """And a file that is damaged is named."""
    kept_state(tmp_path, 1)[2].write()
    (tmp_path / KEPT_STATE).rename(tmp_path / BEGUN_STATE)
    other, loader, begun = kept_state(tmp_path, 2, own=8)
    before = other.weight.clone()
    begun.find()
    begun.take()
    assert loader.loaded is None
    assert torch.equal(other.weight, before)
    whole = (tmp_path / BEGUN_STATE).read_bytes()
    (tmp_path / BEGUN_STATE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidRequestError, match=f"{BEGUN_STATE} cannot be read"):
        begun.find()
