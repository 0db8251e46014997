"""Several micro-batches at once: on the CPU they run in turn, by the code that uses streams on a GPU."""

import itertools

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import Assignment
from idl.synchronisation import Synchronisation
from rpc.address import Address
from tests.worker.torch.test_memory_watch import exhaust
from worker.data.slices import Slices
from worker.data.source import load
from worker.resources.device_memory import DeviceMemory, MemoryWatch
from worker.session import Session, SessionConfig
from worker.torch.ddp import weighted
from worker.torch.exact_sums import ExactSums
from worker.torch.memory_watch import MemoryExhaustedError, within_memory
from worker.torch.micro_batches import Accumulation, SlicedBatch, micro_batches
from worker.torch.randomness import seed_generators
from worker.torch.running_statistics import RunningStatistics

SAMPLES, MICRO_BATCH = 41, 4  # eleven micro-batches, the last two of which are smaller


class Task:
    """A network with batch normalisation and dropout, and a worker's slice in micro-batches."""

    def __init__(self, most=8):
        torch.manual_seed(1)
        self.images = torch.randn(SAMPLES, 3, 6, 6)
        self.labels = torch.randint(4, (SAMPLES,))
        self.model = nn.Sequential(
            *(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten()),
            *(nn.Linear(80, 9), nn.BatchNorm1d(9, momentum=None), nn.Linear(9, 4)),
        )
        config = SessionConfig(Address("127.0.0.1", 1), bounds=Bounds(at_once=most))
        self.session = Session(config)
        self.slices = Slices(SAMPLES, SAMPLES, self.session, shuffle=True, seed=3, micro_batch=MICRO_BATCH)
        self.slices._permute(0)
        self.accumulation = Accumulation(self.session, list(self.model.parameters()), self.model)
        self.under_way = 0

    def batch(self, at_once, iteration=0):
        """Return the slice of an iteration, to be computed so many micro-batches at once."""
        part = self.slices.slice_of(Assignment(iteration, 0, 0, SAMPLES, SAMPLES, 0, 0, at_once))
        return SlicedBatch(part, self.load, self.accumulation)

    def load(self, part):
        """Load a micro-batch, with its seed."""
        seed_generators(part.seed(1))
        return torch.utils.data.default_collate(load(TensorDataset(self.images, self.labels), part.indices))

    def step(self, images, labels):
        """Make a forward and backward pass."""
        loss = nn.functional.cross_entropy(self.model(images), labels)
        loss.backward()
        return loss.detach()

    def outcome(self):
        """Return gradients and buffers, to the last bit."""
        tensors = [p.grad for p in self.model.parameters()] + list(self.model.buffers())
        return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def outcome_of(at_once, iterations=2, within=False, most=8):
    """Return what a few iterations leave in gradients and running statistics."""
    task = Task(most)
    step = within_memory(task.step, task.model, task) if within else None
    outcomes = []
    for iteration in range(iterations):
        task.model.zero_grad()
        batch = task.batch(at_once, iteration)
        if step is None:
            for images, labels in micro_batches(batch):
                task.step(images, labels)
        else:
            step(batch)
        outcomes.append(task.outcome())
    return outcomes


@pytest.mark.slow
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("at_once", [2, 3, 16])
def test_any_number_at_once_gives_the_same_bits(at_once, within):
    """Gradients and running statistics, with random numbers and with micro-batches of two sizes."""
    assert outcome_of(at_once, within=within, most=16) == outcome_of(1)


@pytest.mark.parametrize("at_once", [2, 5])
def test_exact_sums_are_those_of_one_at_once(at_once):
    """Sums in fixed point are of each micro-batch's own gradients and statistics, in whichever lane."""
    sums = []
    for number in (1, at_once):
        task = Task()
        task.session.synchronisation = Synchronisation(exact=True)
        for images, labels in micro_batches(task.batch(number)):
            task.step(images, labels)
        sums.append(task.accumulation.exact_sums())
    assert torch.equal(*sums)
    assert sums[0].count_nonzero() > len(sums[0]) / 2


def test_sparse_gradients_are_not_summed_exactly():
    """The parameter is named, and what to do."""
    task = Task()
    task.session.synchronisation = Synchronisation(exact=True)
    parts = micro_batches(task.batch(1))
    task.step(*next(parts))
    weight = task.model[0].weight
    weight.grad = weight.grad.to_sparse()
    with pytest.raises(InvalidRequestError, match=r"0\.weight has a sparse gradient.*sparse=False"):
        next(parts)


def test_losses_cannot_be_weighted_one_by_one():
    """Ranks would wait for each other in numbers of passes that differ."""
    task = Task()
    task.session.assignment = task.batch(1).part.assignment
    with pytest.raises(InvalidRequestError, match="different numbers of passes: call balance"):
        weighted(torch.ones(()), session=task.session, ranks=2)


@pytest.mark.parametrize("unused", [0, 1])
def test_gradients_that_are_cleared_within_the_loop_are_an_error(unused):
    """All but the last micro-batch's would be lost, also where the first parameter has no gradient."""
    task = Task()
    parameters = [torch.zeros(1, requires_grad=True)] * unused + list(task.model.parameters())
    task.accumulation = Accumulation(task.session, parameters, task.model)
    parts = micro_batches(task.batch(1))
    task.step(*next(parts))
    images, labels = next(parts)
    task.model.zero_grad()
    task.step(images, labels)
    with pytest.raises(InvalidRequestError, match=r"within the loop .* call optimizer\.zero_grad"):
        next(parts)


# -- under DDP, and over the wire


def reduced(at_once, room, tmp_path):
    """Return the bits of a slice under DDP, in a group of one process, and how many passes there were."""
    name = f"file://{tmp_path}/group-{at_once}-{room}"
    distributed.init_process_group("gloo", init_method=name, rank=0, world_size=1)
    try:
        task = ShortOfMemory(room)
        task.model = DistributedDataParallel(task.model)
        task.accumulation = Accumulation(task.session, list(task.model.parameters()), task.model)
        within_memory(task.step, task.model, task)(task.batch(at_once))
        return task.outcome(), task.tried
    finally:
        distributed.destroy_process_group()


def test_under_ddp_the_last_micro_batch_reduces_the_sum(tmp_path):
    """It is computed alone, after all others; the bits are the same, also where memory runs out."""
    expected, passes = reduced(1, 1, tmp_path)
    assert passes == 11
    assert reduced(4, 4, tmp_path) == (expected, 11)
    assert reduced(4, 2, tmp_path) == (expected, 12)


# -- memory


class ShortOfMemory(Task):
    """A task whose backward passes fail while there are more than a number of lanes with results."""

    def __init__(self, room):
        super().__init__()
        self.room = room
        self.tried = 0

    def step(self, images, labels):
        """Make a pass that fails in its backward part, if memory would be short."""
        self.tried += 1
        outputs = self.model(images)
        if len(self.accumulation._under_way) + 1 > self.room:
            outputs.register_hook(lambda gradient: exhaust())
        loss = nn.functional.cross_entropy(outputs, labels)
        loss.backward()
        return loss.detach()


def test_a_lack_of_memory_lowers_the_number_at_once():
    """The micro-batch that failed is tried again, with the same bits; later slices have as many as fitted."""
    task = ShortOfMemory(3)
    step = within_memory(task.step, task.model, task)
    step(task.batch(8))
    assert (task.session.limits.at_once, task.session.limits.most_at_once) == (3, 3)
    assert task.tried == 12
    task.room = 8
    plain = Task()
    for images, labels in micro_batches(plain.batch(1)):
        plain.step(images, labels)
    assert task.outcome() == plain.outcome()


@pytest.mark.parametrize("exact", [False, True])
def test_a_lack_of_memory_while_results_are_added_is_an_error(monkeypatch, exact):
    """What was taken to be added would be missing from the sum; nothing is tried again."""
    task = Task()
    task.session.synchronisation = Synchronisation(exact=exact)
    adding = ExactSums if exact else RunningStatistics
    add, calls = adding.add, itertools.count()
    monkeypatch.setattr(adding, "add", lambda *given: exhaust() if next(calls) == 2 else add(*given))
    step = within_memory(task.step, task.model, task)
    with pytest.raises(MemoryExhaustedError):
        step(task.batch(4))
    task.session.assignment = task.accumulation._part.assignment
    with pytest.raises(InvalidRequestError, match="micro-batches of iteration 0 are left"):
        task.accumulation.check()


def test_a_micro_batch_that_does_not_fit_alone_is_an_error():
    """It names the micro-batch and the device; a lane's extra gradients are given up before."""
    task = ShortOfMemory(0)
    step = within_memory(task.step, task.model, task)
    with pytest.raises(
        MemoryExhaustedError, match="a micro-batch of 4 samples does not fit into the memory of cpu"
    ):
        step(task.batch(2))
    assert task.tried == 2


def test_a_micro_batch_is_not_cut():
    """In a job with micro-batches, the wrapped pass takes what the loader yields."""
    task = Task()
    step = within_memory(task.step, task.model, task)
    with pytest.raises(InvalidRequestError, match="give `within_memory` what the loader yields"):
        step(task.images[:4], task.labels[:4])


def test_shortages_of_the_allocator_lower_the_number_at_once():
    """A number that had the allocator give memory back is lowered half-way to one that did not."""
    task = Task(16)
    figures = iter([0, 0, 3, 3, 5, 6])
    watch = MemoryWatch(task.session, lambda: DeviceMemory(100, 0, 50, 100, next(figures)))
    limits = []
    for at_once in (2, 4, 12, 8, 8):
        task.session.limits.begin(at_once)
        assert watch() == 0.5
        limits.append(task.session.limits.most_at_once)
    assert limits == [16, 16, 8, 8, 7]
    task.session.limits.lower_at_once(4)  # a pass failed, whose allocation is counted as well
    task.session.limits.begin(4)
    watch()
    assert task.session.limits.most_at_once == 4
    assert task.session.limits.take_learned() is None  # its share is no concern of the memory's
