"""Data sets that can only be iterated over: the same batches for any split and any starting point."""

import contextlib
import itertools
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import IterableDataset

from batchsize_manager.client import ManagerClient
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from tests.services import in_threads, manager_service, serving, shard_service
from worker.data.sample_stream import Stream, StreamOrder
from worker.session import Session, SessionConfig
from worker.torch.micro_batches import micro_batches
from worker.torch.optimizer import distribute
from worker.torch.stream_loader import StreamLoader

SIZE, BATCH = 53, 12
EPOCHS, PER_EPOCH = 2, 5


class Counting(IterableDataset):
    """An iterable that yields its places in order, and counts those that it has yielded."""

    def __init__(self, size=SIZE):
        self.size = size
        self.read = 0

    def __iter__(self):
        yield from self.places(0)

    def places(self, start):
        """Yield the places from `start` on."""
        for place in range(start, self.size):
            self.read += 1
            yield place


class Seekable(Counting):
    """A counting iterable that can begin anywhere, and notes where it has begun."""

    def __init__(self, size=SIZE):
        super().__init__(size)
        self.opened = []

    def iter_from(self, position):
        """Iterate from a position on, as the loader may ask."""
        self.opened.append(position)
        return self.places(position)


def train(address, parts, *, datasets=None, stop_at=None, resume=None, **options):
    """Train through all epochs with a worker for each limit in `parts`.

    Returns:
        For each iteration, the places in its batch, in order; and what the first worker saved at `stop_at`.
    """
    seen, saved = {}, []
    manager, shard = address

    def work(number, maximum):
        name = f"w{number}"
        config = SessionConfig(manager, (shard,), worker=name, bounds=Bounds(maximum=maximum))
        session = Session(config)
        dataset = datasets[number] if datasets else Counting()
        loader = StreamLoader(dataset, BATCH, session=session, **{"size": SIZE} | options)
        if resume is not None:
            loader.load_state_dict(resume)
        optimizer = distribute(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), loader)
        for epoch in range(EPOCHS):
            for batch in loader:
                assignment = session.assignment
                assert assignment.epoch == epoch
                parts = list(micro_batches(batch)) if "micro_batch" in options else [batch]
                assert {len(part) for part in parts[:-2]} <= {options.get("micro_batch")}
                seen[assignment.iteration, assignment.start] = torch.cat(parts).tolist()
                optimizer.step()
                if session.assignment.iteration == stop_at:
                    if not number:
                        saved.append(loader.state_dict())
                    session.close()
                    return
        session.close()

    in_threads(*(lambda i=i, maximum=maximum: work(i, maximum) for i, maximum in enumerate(parts)))
    batches = {}
    for iteration, start in sorted(seen):
        batches.setdefault(iteration, []).extend(seen[iteration, start])
    return batches, saved


@pytest.fixture(scope="module")
def services():
    """Yield a function that starts a manager for n workers and a shard, and stops those before."""
    with contextlib.ExitStack() as stack:
        shard = stack.enter_context(serving(shard_service()))
        yield lambda workers: (stack.enter_context(serving(manager_service(workers, silence=240.0))), shard)


def expected(shuffle_buffer, seed=4):
    """Compute the places in each iteration's batch, block by block, from the order's definition."""
    batches = {}
    for epoch in range(EPOCHS):
        places = list(range(SIZE))
        length = shuffle_buffer or 1
        begins = range(0, SIZE, length)
        order = []
        for number, begin in enumerate(begins):
            block = places[begin : begin + length]
            mixed = permutation(JobSpec(len(block), 1, seed), epoch * len(begins) + number)
            order += [block[i] for i in mixed]
        for number, begin in enumerate(range(0, SIZE, BATCH)):
            batches[epoch * PER_EPOCH + number] = order[begin : begin + BATCH]
    return batches


ORDERS = [{}, {"shuffle_buffer": 7, "micro_batch": 4}, {"shuffle_buffer": 1000}]


@pytest.mark.parametrize(
    ("parts", "options"),
    [*itertools.product([(12,), (8, 4)], ORDERS), ((7, 4, 1), {"shuffle_buffer": 7})],
    ids=str,
)
def test_the_batches_are_the_same_at_any_number_of_workers(services, parts, options):
    """One, two or three workers, even or not, divide the same batches in the same order.

    So they do in micro-batches of four, or less at a batch's end.
    """
    batches, _ = train(services(len(parts)), parts, seed=4, **options)
    assert batches == expected(options.get("shuffle_buffer", 0))


@pytest.mark.parametrize("kind", [Counting, Seekable])
@pytest.mark.parametrize("stop_at", [3, 7])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(services, kind, stop_at):
    """After a save in the middle of an epoch, another number of workers continues with the next batch."""
    options = {"shuffle_buffer": 7, "seed": 4}
    before, (saved,) = train(services(2), (9, 3), stop_at=stop_at, **options)
    assert max(before) == stop_at - 1
    datasets = [kind() for _ in range(3)]
    after, _ = train(services(3), (9, 3, 3), datasets=datasets, resume=saved, **options)
    assert before | after == expected(7)
    assert min(after) == stop_at
    if kind is Seekable:
        begin = stop_at % PER_EPOCH * BATCH
        for dataset in datasets:
            assert begin - 7 < dataset.opened[0] < begin + BATCH + 7
            assert dataset.read < (EPOCHS * PER_EPOCH - stop_at) * BATCH + 2 * 7


@pytest.mark.parametrize("shuffle_buffer", [0, 7])
@pytest.mark.parametrize("options", [{}, {"micro_batch": 4}], ids=["whole", "micro-batches"])
def test_a_batch_size_that_grows_at_run_time_keeps_the_order(services, shuffle_buffer, options):
    """Batches of 48 in place of 12, once that is told the manager, have the next samples, each once."""
    manager, shard = services(1)
    session = Session(SessionConfig(manager, (shard,), worker="w", job="growing"))
    with contextlib.closing(session), ManagerClient(manager) as client:
        loader = StreamLoader(
            Counting(), BATCH, session=session, size=SIZE, seed=4, shuffle_buffer=shuffle_buffer, **options
        )
        optimizer = distribute(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), loader)
        seen, sizes = [], []
        for _ in range(EPOCHS):
            for batch in loader:
                if not sizes:
                    client.set_total_batch_size("growing", 4 * BATCH)
                seen += torch.cat(list(micro_batches(batch)) if options else [batch]).tolist()
                sizes.append(len(seen) - sum(sizes))
                optimizer.step()
    assert sizes == [12, 41, 48, 5]
    assert seen == [place for batch in expected(shuffle_buffer).values() for place in batch]


class Noisy(Counting):
    """An iterable whose samples have noise of a generator of its own."""

    def __init__(self, size=SIZE):
        super().__init__(size)
        self.own = np.random.default_rng(1)

    def places(self, start):
        """Yield the places from `start` on, with noise."""
        yield from (place + self.own.random() for place in super().places(start))


def of_global_numbers(samples):
    """Make a batch with noise from the generators that are seeded."""
    return torch.tensor(samples) + torch.rand(len(samples))


@pytest.mark.parametrize(
    ("kind", "options", "warnings"),
    [
        (Noisy, {}, 1),
        (Noisy, {"shuffle_buffer": 7}, 1),
        (Counting, {"collate_fn": of_global_numbers}, 0),
        (Seekable, {"shuffle_buffer": 7}, 0),
    ],
)
def test_a_stream_that_differs_when_it_is_read_again_is_warned_of(services, caplog, kind, options, warnings):
    """Once, with the generator's name, where it has one of its own."""
    train(services(1), (12,), datasets=[kind()], micro_batch=4, **options)
    named = [
        r.message.count("such as dataset.own (Generator)") for r in caplog.records if "differ" in r.message
    ]
    assert named == [1] * warnings


def test_the_check_does_not_read_a_long_way_again():
    """Samples far from the stream's beginning are read again only from where it can begin."""
    for kind, is_read_again in ((Counting, False), (Seekable, True)):
        dataset = kind()
        stream = Stream(dataset, SIZE)
        stream.keep(BATCH)
        stream.samples(np.arange(30, 33))
        before = dataset.read
        assert stream.forget(32) is is_read_again
        assert stream.samples(np.arange(30, 33)) == [30, 31, 32]
        assert dataset.read - before == 3 * is_read_again
        assert stream.forget(BATCH - 1)


def test_a_checkpoint_of_another_order_is_refused(services):
    """A resumed job must permute as before, or samples would be used twice."""
    _, (saved,) = train(services(1), (12,), stop_at=3, shuffle_buffer=7)
    with pytest.raises(InvalidRequestError, match="shuffle_buffer 7, but this is 8"):
        train(services(1), (12,), resume=saved, shuffle_buffer=8)


def test_a_stream_of_unknown_size_is_counted(services, caplog):
    """Without `size` the stream is read once before the training, and the log says so."""
    caplog.set_level(logging.INFO, "worker.data.sample_stream")
    batches, _ = train(services(1), (12,), size=None)
    assert batches == expected(0)
    assert "counting the stream's samples" in caplog.text
    assert f"the stream has {SIZE} samples" in caplog.text


@pytest.mark.parametrize(("size", "complaint"), [(52, "ended after 52"), (54, "goes on after 53")])
def test_a_stream_of_another_size_is_an_error(services, size, complaint):
    """A stream that is shorter or longer than `size` is refused, with both numbers."""
    with pytest.raises(InvalidRequestError, match=f"{complaint} samples, but its size is 53"):
        train(services(1), (12,), datasets=[Counting(size)])


def test_what_can_be_iterated_over_once_is_refused():
    """A generator is refused, since it would be empty in the second epoch."""
    with pytest.raises(InvalidRequestError, match=r"generator: must be .* iterated over repeatedly"):
        Stream((i for i in range(3)), 3)
    with pytest.raises(InvalidRequestError, match="int: must be"):
        Stream(3, 3)
    with pytest.raises(InvalidRequestError, match="shuffle_buffer -1"):
        StreamOrder(3, -1)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), kind=st.sampled_from([Counting, Seekable]), buffer=st.integers(0, 60))
def test_any_slice_can_be_had_at_any_time(data, kind, buffer):
    """Slices of any position of any epoch, repeated or earlier, hold the order's samples."""
    dataset = kind()
    stream, order = Stream(dataset, SIZE), StreamOrder(SIZE, buffer, seed=4)
    stream.keep(BATCH + 2 * buffer)
    batches = expected(buffer)
    whole = {}
    for iteration, batch in batches.items():
        whole.setdefault(iteration // PER_EPOCH, []).extend(batch)
    for _ in range(8):
        epoch = data.draw(st.integers(0, EPOCHS - 1))
        start = data.draw(st.integers(0, SIZE - 1))
        count = data.draw(st.integers(1, SIZE - start))
        assert stream.samples(order.indices(epoch, start, count)) == whole[epoch][start : start + count]


@pytest.mark.parametrize("buffer", [0, 7])
def test_few_samples_are_kept(buffer):
    """Skipped and used samples are freed, except for a batch and the blocks that it touches."""
    dataset = Counting()
    stream, order = Stream(dataset, SIZE), StreamOrder(SIZE, buffer)
    stream.keep(BATCH + 2 * buffer)
    most = 0
    for start in (0, BATCH, 3 * BATCH, 0, SIZE - 1):
        stream.samples(order.indices(0, start, 1))
        most = max(most, len(stream._recent))
    assert BATCH <= most <= BATCH + 2 * buffer


@pytest.mark.parametrize("buffer", [0, 7])
@pytest.mark.parametrize("growth", [1, 4])
def test_a_batch_is_read_once_whoever_takes_its_parts(buffer, growth):
    """The parts of a batch, in any order, need no second pass over the stream, also once it has grown."""
    dataset = Counting()
    stream, order = Stream(dataset, SIZE), StreamOrder(SIZE, buffer)
    stream.keep(BATCH + 2 * buffer)
    batch = growth * BATCH
    stream.keep(batch + 2 * buffer)
    for begin in range(0, 48, batch):
        for start, count in ((4, 5), (0, 4), (9, 3), (4, 5)):
            stream.samples(order.indices(0, begin + start * growth, count * growth))
    assert dataset.read <= SIZE
