"""Memory of a GPU that really runs out: batches done in pieces, and a limit that holds."""

import pytest
import torch
from torch import nn

from idl.bounds import Bounds
from idl.plan import Assignment
from lab.models.resnet import ResNet32
from rpc.address import Address
from worker.resources.nvml import Device
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader
from worker.torch.memory_watch import read_device, within_memory

SHARE = 2 * 2**30  # bytes that the allocator is confined to
BATCH = 4096  # samples of the first batch, which do not fit into that in float64
MOST_DIFFERENCE = 1e-9  # of a gradient, relative to its largest element

pytestmark = pytest.mark.gpu


@pytest.fixture
def confined(gpu):
    """The device, of whose memory this process gets a share."""
    torch.cuda.set_per_process_memory_fraction(min(1.0, SHARE / torch.cuda.mem_get_info(gpu)[1]), gpu)
    yield gpu
    torch.cuda.set_per_process_memory_fraction(1.0, gpu)


def flat_gradient(model):
    """Return the gradient, (elements,)."""
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_batch_that_does_not_fit_is_done_in_pieces(confined):
    """Its gradient is the sum by hand, and batches within the limit that was learned are done at once."""
    torch.manual_seed(0)
    model = ResNet32(norm="group").double().to(confined)
    session = Session(SessionConfig(Address("127.0.0.1", 1), bounds=Bounds(maximum=BATCH)))
    sizes = []

    def loss_of(inputs, classes, reduction):
        return nn.functional.cross_entropy(
            model(inputs.to(confined)), classes.to(confined), reduction=reduction
        )

    def forward_backward(inputs, classes):
        loss_of(inputs, classes, "mean").backward()
        sizes.append(len(inputs))

    step = within_memory(forward_backward, model, DataLoader(range(BATCH), BATCH, session=session))
    for iteration in range(12):
        most = session.limits.maximum
        count = most if iteration < 6 else max(1, most * (4 + iteration % 4) // 8)
        session.assignment = Assignment(iteration, 0, 0, count, BATCH)
        inputs, classes = torch.randn(count, 3, 32, 32, dtype=torch.float64), torch.randint(10, (count,))
        sizes.clear()
        model.zero_grad()
        step(inputs, classes)
        assert 0 < session.meter.memory_usage() <= 1
        assert sum(sizes) == count
        assert len(sizes) > 1 or iteration > 0, "the first batch has fitted, so that nothing was shown"

        gradient = flat_gradient(model)
        model.zero_grad()
        for part, targets in zip(inputs.split(64), classes.split(64), strict=True):
            (loss_of(part, targets, "sum") / count).backward()
        expected = flat_gradient(model)
        assert (gradient - expected).abs().max() <= MOST_DIFFERENCE * expected.abs().max()
    assert sizes == [count], "the last batch is within the limit"
    assert step.limit is not None
    assert session.limits.take_learned() <= step.limit < BATCH


def test_nvml_has_the_devices_memory(gpu):
    """NVML tells the same memory as CUDA; without a driver that has it, there is nothing to compare."""
    try:
        nvml = Device(gpu.index).memory()
    except LookupError as error:
        pytest.skip(str(error))
    assert nvml.total == pytest.approx(read_device(gpu).total, rel=0.05)
