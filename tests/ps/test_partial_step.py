"""Steps that are taken range by range before they are certain: the same bits as whole steps, or no trace."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.layout import Group, Layout
from ps.backup_shard import BackupShard
from ps.exact_shard import ExactShard
from ps.shard import Shard
from tests.ps.tensors import OPTIMIZERS, plain_sgd, slice_of, slices, tensor, values

KERAS = [
    ("keras_sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": 1.0, "weight_decay": 0.01}),
    ("keras_adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": 1.0}),
]


def snapshot_of(shard):
    """Return all that a shard's next steps depend on, to be compared."""
    snapshot = shard.snapshot()
    state = [
        sorted((key, torch.as_tensor(value).tolist()) for key, value in own.items()) for own in snapshot.state
    ]
    return snapshot.layout, snapshot.version, snapshot.steps, snapshot.parameters.tolist(), state


def grouped(layout, **changed):
    """Return a layout's groups with options that are changed."""
    return tuple(
        Group(group.elements, {} if group.statistics else group.options | changed, group.statistics)
        for group in layout.groups
    )


@pytest.mark.ci
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS + KERAS)
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_partial_steps_are_whole_steps_to_the_last_bit(name, options, data):
    """In whichever order pieces arrive, with options that change, and with batches that are dropped."""
    sizes = data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=4).filter(any))
    statistics = data.draw(st.integers(-1, len(sizes) - 1)) if len(sizes) > 1 else -1
    layout = Layout(
        "float32",
        name,
        tuple(
            Group(size, {} if number == statistics else options, number == statistics)
            for number, size in enumerate(sizes)
        ),
    )
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    initial = torch.randn(layout.elements, generator=generator)
    partial, whole = (Shard(layout) for _ in range(2))
    for shard in (partial, whole):
        shard.initialise(initial.clone(), 0)
    is_dropped = data.draw(st.lists(st.booleans(), min_size=5, max_size=5))
    for number, drops in enumerate(is_dropped):
        before = snapshot_of(partial)
        gradients = [torch.randn(layout.elements, generator=generator) for _ in counts]
        groups = grouped(layout, lr=0.1 / (1 + number))
        shards = (partial,) if drops else (partial, whole)  # the other one never sees what is dropped
        pushed = [
            [shard.begin(slice_of(shard.version, start, count, sum(counts)), f"w{start}") for shard in shards]
            for start, count in slices(counts)
        ]
        for both in pushed:
            for shard, contribution in zip(shards, both, strict=True):
                shard.set_options(contribution, groups)
        done = [0] * len(counts)
        while min(done) < layout.elements:
            worker = data.draw(st.sampled_from([i for i, n in enumerate(done) if n < layout.elements]))
            begin = done[worker]
            done[worker] = min(layout.elements, begin + data.draw(st.integers(1, layout.elements)))
            for shard, contribution in zip(shards, pushed[worker], strict=True):
                shard.add(contribution, gradients[worker][begin : done[worker]])
            end = partial.step_in_part()
            assert end <= min(done)
            assert snapshot_of(partial) == before, "nothing of the version before has changed"
            if drops and min(done) == layout.elements:
                partial.drop()
                assert snapshot_of(partial) == before, "nor has it then"
        if not drops:
            for shard in (partial, whole):
                shard.step()
            assert snapshot_of(partial) == snapshot_of(whole)
            assert partial.norms == whole.norms


@pytest.mark.parametrize(
    "shard",
    [
        Shard(Layout("float64", "sgd", (Group(4, {"lr": 1.0}),)), deterministic=True),
        BackupShard(Layout("float64", "sgd", (Group(4, {"lr": 1.0}),)), 1),
        ExactShard(Layout("float64", "sgd", (Group(4, {"lr": 1.0}),))),
    ],
    ids=["deterministic", "backup", "exact"],
)
def test_sums_that_are_made_in_the_step_are_not_stepped_in_part(shard):
    """Their steps are taken whole."""
    shard.initialise(torch.zeros(4, dtype=torch.float64), 0)
    piece = torch.ones(4, dtype=shard.pushed_dtype)
    shard.add(shard.begin(slice_of(0, 0, 8)), piece)
    assert shard.is_complete
    assert not shard.step_in_part()
    assert not shard.has_partial_step


def test_a_part_that_another_worker_goes_on_with_ends_the_partial_steps():
    """Of a push that broke off, what was stepped stays, and the step completes the rest."""
    shard = plain_sgd(64)
    broken = shard.begin(slice_of(0, 0, 8), "first")
    shard.add(broken, torch.ones(32, dtype=torch.float64))
    assert shard.step_in_part() == 32
    shard.interrupt(broken)
    other = shard.begin(slice_of(0, 0, 8), "second")
    assert other.first == 32
    shard.add(other, torch.full((32,), 2.0, dtype=torch.float64))
    assert shard.step_in_part() == 32
    shard.step()
    assert values(shard).tolist() == [-1.0] * 32 + [-2.0] * 32


def test_memory_that_is_read_is_left_alone():
    """What was given out of a partial step keeps its values while later steps are taken elsewhere."""
    shard = plain_sgd(4)
    given_out = []
    for version in range(1, 4):
        shard.add(shard.begin(slice_of(version - 1, 0, 8)), tensor(1, 1, 1, 1))
        shard.partial_step.leave_memory()
        shard.step_in_part()
        given_out.append((shard.next_parameters(), -version))
        shard.step()
    for memory, value in given_out:
        assert torch.frombuffer(memory, dtype=torch.float64).tolist() == [value] * 4


def test_an_optimiser_without_its_state_takes_its_first_step_whole():
    """Momentum that is switched on later begins with a whole step, too; without, there is no state."""
    layout = Layout("float64", "sgd", (Group(4, {"lr": 1.0, "momentum": 0.0}),))
    shard = Shard(layout)
    shard.initialise(torch.zeros(4, dtype=torch.float64), 0)
    for version, (momentum, is_taken) in enumerate(
        itertools.zip_longest((0.0, 0.9, 0.9), (True, False, True))
    ):
        contribution = shard.begin(slice_of(version, 0, 8))
        shard.set_options(contribution, grouped(layout, momentum=momentum))
        shard.add(contribution, tensor(1, 1, 1, 1))
        assert bool(shard.step_in_part()) == is_taken
        shard.step()
    assert values(shard).tolist() == pytest.approx([-1 - 1 - 1.9] * 4)


@pytest.mark.parametrize("partial_steps", [False, True], ids=["whole", "in part"])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS + KERAS)
def test_a_shard_knows_what_memory_it_takes(name, options, partial_steps):
    """All tensors of the parameters' length count, once the shard has stepped."""
    shard = Shard(Layout("float32", name, (Group(64, options),)), partial_steps=partial_steps)
    shard.initialise(torch.zeros(64), 0)
    for _ in range(3):
        shard.add(shard.begin(slice_of(shard.version, 0, 8)), torch.ones(64))
        shard.step_in_part()
        shard.step()
    (state,) = shard.snapshot().state
    held = [shard._parameters, shard._gradient, *state.values()]
    if shard.partial_step is not None:
        held += [shard.partial_step.parameters, *shard.partial_step._states[0].values()]
    assert shard.nbytes == sum(one.nbytes for one in held if one.shape == (64,))
