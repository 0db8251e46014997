"""The parameter server's arithmetic: exactly the whole batch's gradient, and exactly torch.optim's step."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.errors import InvalidRequestError, NotMemberError
from idl.layout import Group, Layout
from ps.asynchronous_shard import AsynchronousShard
from ps.backup_shard import BackupShard
from ps.optimizers import DTYPES, check_optimizer, make_optimizer, translate
from ps.shard import GradientSink, Shard
from tests.ps.tensors import OPTIMIZERS, TORCH, plain_sgd, push, send, slice_of, slices, tensor, values, wire
from worker.torch.optimizer_options import describe

SIZES = (5, 0, 8)  # elements of the parameter groups


# -- the weighted mean


@pytest.mark.parametrize("deterministic", [False, True])
@settings(deadline=None)
@given(st.data())
def test_mean_is_the_whole_batchs_in_any_order_and_pieces(deterministic, data):
    """Slices that come interleaved, in chunks of any size, make the mean over the samples' gradients."""
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    elements = data.draw(st.integers(1, 40))
    seed = data.draw(st.integers(0, 2**32))
    total = sum(counts)
    samples = torch.randn(total, elements, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    shard = plain_sgd(elements, deterministic=deterministic)

    order = random.Random(seed)
    rest = []
    for start, count in order.sample(slices(counts), len(counts)):
        sink = GradientSink(shard, shard.begin(slice_of(0, start, count, total)))
        rest.append((sink, memoryview(wire(samples[start : start + count].mean(dim=0)))))
    while rest:
        assert not shard.is_complete
        sink, left = rest.pop(order.randrange(len(rest)))
        n = order.randint(1, len(left))
        send(sink, left[:n])
        if n < len(left):
            rest.append((sink, left[n:]))
        else:
            sink.close()
    assert shard.is_complete
    shard.step()

    torch.testing.assert_close(values(shard), -samples.mean(dim=0), rtol=1e-12, atol=1e-14)


# -- the optimiser's step


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_steps_are_torchs_bit_for_bit(name, options, deterministic, dtype):
    """With a batch gradient that needs no rounding, every step's parameters are those of torch.optim."""
    generator = torch.Generator().manual_seed(2)
    start = torch.randn(sum(SIZES), dtype=DTYPES[dtype], generator=generator)
    other = {**options, "lr": options["lr"] / 3, "weight_decay": 0.2}
    groups = tuple(Group(n, o) for n, o in zip(SIZES, (options, options, other), strict=True))
    shard = Shard(Layout(dtype, name, groups), deterministic)
    assert shard.initialise(start.clone(), 0)

    parameters = [part.clone().requires_grad_() for part in torch.split(start, SIZES)]
    reference = TORCH[name](
        [{"params": [p], **translate(name, g.options)} for p, g in zip(parameters, groups, strict=True)]
    )
    for _ in range(5):
        # Whole numbers and powers of two: means and weighted sums are exact in any order.
        samples = torch.randint(-8, 9, (8, sum(SIZES)), generator=generator).to(DTYPES[dtype])
        for begin, count in ((4, 4), (0, 2), (3, 1), (2, 1)):
            push(shard, begin, count, 8, samples[begin : begin + count].mean(dim=0))
        shard.step()
        for parameter, part in zip(parameters, torch.split(samples.mean(dim=0), SIZES), strict=True):
            parameter.grad = part.clone()
        reference.step()
        assert torch.equal(values(shard), torch.cat([p.detach() for p in parameters]))


@settings(deadline=None)
@given(st.permutations(range(5)), st.integers(0, 2**32), st.sampled_from(sorted(DTYPES)))
def test_deterministic_mode_does_not_depend_on_the_order(order, seed, dtype):
    """In deterministic mode, any order of arrival gives the same bits."""
    counts = [3, 7, 1, 11, 5]
    gradients = torch.randn(5, 33, generator=torch.Generator().manual_seed(seed)).to(DTYPES[dtype])
    results = []
    for arrivals in (range(5), order):
        shard = plain_sgd(33, dtype, deterministic=True)
        for i in arrivals:
            push(shard, *slices(counts)[i], 27, gradients[i])
        shard.step()
        results.append(bytes(shard.parameters()))

    assert results[0] == results[1]


# -- pushes that break


# -- what is refused


@pytest.mark.parametrize(("make", "worker"), [(Shard, ""), (AsynchronousShard, "a")])
def test_push_before_parameters_is_refused(make, worker):
    """A push before the parameters are set is refused."""
    shard = make(Layout("float64", "sgd", (Group(1, {"lr": 1.0}),)))
    with pytest.raises(InvalidRequestError, match="before the parameters"):
        shard.begin(slice_of(0, 0, 1, 1), worker)


@pytest.mark.parametrize(
    ("start", "count", "total", "said"),
    [
        (3, 4, 10, "slice 3 to 7 overlaps 4 to 8"),
        (7, 2, 10, "slice 7 to 9 overlaps 4 to 8"),
        (1, 4, 10, "slice 1 to 5 overlaps 4 to 8"),
        (5, 9, 10, "slice 5 to 14 overlaps 4 to 8"),
        (8, 7, 10, r"slice of 7 samples.* batch of 10"),
        (8, 2, 11, r"total 11.* 10"),
    ],
)
def test_slices_that_do_not_fit_together_are_refused(start, count, total, said):
    """Slices may share all positions or none, sum to the total at most, and name the same total."""
    shard = plain_sgd(1)
    shard.begin(slice_of(0, 4, 4, 10))
    with pytest.raises(InvalidRequestError, match=said):
        shard.begin(slice_of(0, start, count, total))
    shard.begin(slice_of(0, 8, 2, 10))
    shard.begin(slice_of(0, 0, 4, 10))


# -- options


def two_groups():
    """Make a shard of two parameters, each in a group of its own with a learning rate of 1."""
    shard = Shard(Layout("float64", "sgd", (Group(1, {"lr": 1.0}), Group(1, {"lr": 1.0}))))
    shard.initialise(tensor(0, 0), 0)
    return shard


def rates(*rates):
    """Make the options of groups of one parameter each."""
    return [Group(1, {"lr": rate}) for rate in rates]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_step_has_the_options_of_the_first_samples(order):
    """A step takes the first slice's options; workers that differ get an error until they reopen."""
    shard = two_groups()
    told = [rates(0.5, 2.0), rates(0.5 * (1 + 1e-9), 2.0), rates(0.5, 0.25)]
    for number in order:
        push(shard, number, 1, 3, tensor(1, 1), groups=told[number], worker=f"w{number}")
    shard.step()
    assert values(shard).tolist() == [-0.5, -2]
    push(shard, 0, 3, 3, tensor(1, 1), worker="w0")
    shard.step()
    assert values(shard).tolist() == [-1, -4]
    for worker in ("w0", "w1"):
        shard.check_options(worker)
    with pytest.raises(
        InvalidRequestError, match=r"iteration 0: lr of parameter group 1 is 0\.25 at 'w2', but 2\.0 at 'w0'"
    ):
        shard.check_options("w2")
    shard.start_worker("w2", shard.layout.groups)
    shard.check_options("w2")


def test_options_of_what_was_dropped_are_forgotten():
    """Another attempt begins with the options of the last step."""
    shard = two_groups()
    push(shard, 0, 1, 2, tensor(1, 1), groups=rates(0.5, 0.5))
    shard.drop()
    push(shard, 0, 2, 2, tensor(1, 1))
    shard.step()
    assert values(shard).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([Group(1, {"lr": 2.0}), Group(1, {"lr": -1.0})], "learning rate: -1"),
        ([Group(1, {"lr": 2.0}), Group(1, {"lr": 2.0, "speed": 1.0})], "'speed'"),
        ([Group(1, {"lr": 2.0}), Group(1, {"momentum": 0.5})], "lr is missing"),
        ([Group(1, {"lr": 2.0}), Group(1, {"lr": float("nan")})], "lr nan"),
        ([Group(1, {"lr": 2.0})], r"\[1\].*\[1, 1\]"),
        ([Group(1, {"lr": 2.0}), Group(2, {"lr": 2.0})], r"\[1, 2\].*\[1, 1\]"),
    ],
)
def test_bad_options_leave_the_old(groups, said):
    """If one group's options are refused, none of them changes."""
    shard = two_groups()
    contribution = shard.begin(slice_of(0, 0, 1, 1))
    with pytest.raises(InvalidRequestError, match=said):
        shard.set_options(contribution, groups)
    shard.interrupt(contribution)
    push(shard, 0, 1, 1, tensor(1, 1))
    shard.step()

    assert values(shard).tolist() == [-1, -1]


def test_amsgrad_cannot_be_switched_on_later():
    """Options that would make the next step fail are refused, and the steps go on."""
    shard = Shard(Layout("float64", "adam", (Group(1, {"lr": 1.0}),)))
    shard.initialise(tensor(0), 0)
    push(shard, 0, 1, 1, tensor(1))
    shard.step()
    contribution = shard.begin(slice_of(1, 0, 1, 1))
    with pytest.raises(InvalidRequestError, match="amsgrad"):
        shard.set_options(contribution, [Group(1, {"lr": 1.0, "amsgrad": 1.0})])
    shard.interrupt(contribution)
    push(shard, 0, 1, 1, tensor(1))
    shard.step()

    assert shard.version == 2


LEARNED = Group(1, {"lr": 1.0})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("float16", "sgd", (LEARNED,)), "'float16'.*float32, float64"),
        (("float32", "lbfgs", (LEARNED,)), "'lbfgs'.*sgd, adam, adamw"),
        (("float32", "sgd", ()), "at least one element"),
        (("float32", "sgd", (Group(0, {"lr": 1.0}),)), "at least one element"),
        (("float32", "sgd", (Group(2, {"lr": 1.0}), Group(-1, {"lr": 1.0}))), "at least one element"),
        (("float32", "sgd", (Group(1, {}),)), "lr is missing"),
        (("float32", "sgd", (LEARNED, Group(1, {"lr": 1.0}, statistics=True))), "statistics have no options"),
        (("float32", "sgd", (Group(1, {}, statistics=True),)), "all are of statistics"),
        (("float32", "sgd", (Group(1, {"lr": 1.0, "beta1": 0.9}),)), "sgd has no option 'beta1'.*momentum"),
        (("float32", "adam", (Group(1, {"lr": 1.0, "momentum": 0.9}),)), "'momentum'"),
        (("float32", "adam", (Group(1, {"lr": 1.0, "eps": float("inf")}),)), "eps inf"),
        (("float32", "adam", (Group(1, {"lr": 1.0, "beta1": 0.9}),)), "beta1 and beta2"),
        (("float32", "adamw", (Group(1, {"lr": 1.0, "beta1": 1.5, "beta2": 0.9}),)), "beta.*1.5"),
        (("float32", "sgd", (Group(1, {"lr": 1.0, "momentum": -1.0}),)), "momentum value: -1"),
        (("float32", "sgd", (Group(1, {"lr": 1.0, "nesterov": 1.0}),)), "Nesterov"),
        *(
            (("float32", f"keras_{name}", (Group(1, {"lr": 1.0} | options),)), said)
            for name, options, said in (
                ("sgd", {"lr": -1.0}, "lr -1.0"),
                ("sgd", {"momentum": 1.5}, "momentum 1.5"),
                ("sgd", {"dampening": 0.5}, "no option 'dampening'"),
                ("adam", {"beta1": 0.9, "beta2": 1.0}, "beta1 and beta2.*1.0"),
                ("adam", {"eps": -1.0}, "eps -1.0"),
                ("adamw", {"weight_decay": -0.1}, "weight_decay -0.1"),
            )
        ),
    ],
)
def test_layout_errors_name_the_option(arguments, said):
    """A layout that no optimiser can serve is refused with what is wrong."""
    with pytest.raises(InvalidRequestError, match=said):
        check_optimizer(Layout(*arguments))


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_describe_round_trips(name, options):
    """Every option of an optimiser survives the way over the wire."""
    groups = [options, {**options, "lr": 0.7, "weight_decay": 0.3}]
    tensors = [torch.zeros(1), torch.zeros(2)]
    original = make_optimizer(name, tensors, groups)

    described, described_groups = describe(original)
    assert described == name
    for sent, given_options in zip(described_groups, groups, strict=True):
        assert sent.items() >= given_options.items()
        assert all(type(value) is float for value in sent.values())
    copy = make_optimizer(described, tensors, described_groups)
    for mine, theirs in zip(copy.param_groups, original.param_groups, strict=True):
        assert {k: v for k, v in mine.items() if k != "params"} == {
            k: v for k, v in theirs.items() if k != "params"
        }


class MySGD(torch.optim.SGD):
    """An optimiser whose step may differ from its base class's."""


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        *((make, {"maximize": True}, r"maximize=True.*negate the loss") for make in TORCH.values()),
        (torch.optim.RMSprop, {}, r"RMSprop.*SGD, Adam and AdamW"),
        (MySGD, {}, "MySGD"),
        (torch.optim.Adam, {"decoupled_weight_decay": True}, r"torch\.optim\.AdamW"),
    ],
)
def test_describe_refuses_what_the_parameter_server_lacks(make, options, said):
    """Maximising, other optimisers, subclasses that may step otherwise, and Adam as AdamW are refused."""
    with pytest.raises(ValueError, match=said):
        describe(make([torch.zeros(1)], lr=0.1, **options))


# -- a step for each push (ASP, SSP)


def asynchronous(elements=2, optimizer="sgd", **options):
    """Make an asynchronous shard of zeros, by default one whose step subtracts the gradient."""
    shard = AsynchronousShard(Layout("float64", optimizer, (Group(elements, {"lr": 1.0, **options}),)))
    shard.initialise(torch.zeros(elements, dtype=torch.float64), 0)
    return shard


def push_as(shard, worker, iteration, gradient, start=0, count=1, total=8):
    """Push a worker's gradient and take the step."""
    sink = GradientSink(shard, shard.begin(slice_of(iteration, start, count, total), worker))
    send(sink, wire(gradient))
    sink.close()
    assert shard.is_complete
    shard.step()


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS)
def test_asynchronous_steps_are_torchs_bit_for_bit(name, options):
    """Each push, of any worker, iteration and count, is one step of torch.optim."""
    shard = asynchronous(3, name, **options)
    parameter = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    reference = TORCH[name]([{"params": [parameter], **translate(name, options)}])
    generator = torch.Generator().manual_seed(4)
    for version, (worker, iteration) in enumerate([("a", 0), ("a", 1), ("b", 0), ("a", 7), ("b", 1)]):
        assert shard.version == version
        gradient = torch.randn(3, dtype=torch.float64, generator=generator)
        push_as(shard, worker, iteration, gradient, count=1 + version)
        parameter.grad = gradient.clone()
        reference.step()
        assert torch.equal(values(shard), parameter.detach())


def test_asynchronous_pushes_interleave():
    """Gradients that arrive at the same time do not mix; each makes its step once it is complete."""
    elements = 2**16
    shard = asynchronous(elements)
    ones = torch.ones(elements, dtype=torch.float64)
    sinks = [GradientSink(shard, shard.begin(slice_of(0, i, 1, 2), worker)) for i, worker in enumerate("ab")]
    data = [wire(ones), wire(10 * ones)]
    send(sinks[0], data[0][: 2**18])
    send(sinks[1], data[1][: 2**18])
    assert not shard.is_complete
    send(sinks[1], data[1][2**18 :])
    shard.step()
    assert torch.equal(values(shard), -10 * ones)
    assert not shard.is_complete
    send(sinks[0], data[0][2**18 :])
    shard.step()
    assert torch.equal(values(shard), -11 * ones)
    assert shard.version == 2


def test_asynchronous_pushes_count_once():
    """A worker's iteration that was applied, and any before it, is known by the worker's name."""
    shard = asynchronous()
    push_as(shard, "a", 3, tensor(1, 1))
    assert shard.has_used(slice_of(3, 0, 1), "a")
    assert shard.has_used(slice_of(2, 0, 1), "a")
    assert not shard.has_used(slice_of(4, 0, 1), "a")
    assert not shard.has_used(slice_of(3, 0, 1), "b")


@pytest.mark.parametrize("whole", [False, True])
def test_a_broken_asynchronous_push_leaves_no_trace(whole):
    """What a broken connection sent is dropped, and the same gradient sent again counts once."""
    elements = 2**16
    shard = asynchronous(elements)
    ones = torch.ones(elements, dtype=torch.float64)
    old = GradientSink(shard, shard.begin(slice_of(0, 0, 1, 1), "a"))
    send(old, wire(ones)[: None if whole else 2**18])
    old.abort()
    assert not shard.is_complete
    # The old connection may not know yet that it is broken.
    stale = GradientSink(shard, shard.begin(slice_of(0, 0, 1, 1), "a"))
    send(stale, wire(ones)[: 2**18])
    push_as(shard, "a", 0, ones)
    send(stale, wire(ones)[2**18 :])
    stale.abort()
    assert not shard.is_complete
    assert torch.equal(values(shard), -ones)


def test_asynchronous_options_are_each_workers_own():
    """A learning rate that one worker lowers is not used for the gradients of another."""
    shard = asynchronous()
    group = shard.layout.groups[0]
    shard.start_worker("a", shard.layout.groups)
    shard.start_worker("b", [Group(2, {"lr": 3.0})])
    shard.set_options(
        shard.begin(slice_of(0, 0, 1, 8), "a"), [Group(group.elements, {"lr": 0.5, "momentum": 0.0})]
    )
    for worker, lr in (("a", 0.5), ("b", 3.0), ("c", 1.0), ("a", 0.5)):
        before = values(shard)
        push_as(shard, worker, shard.version, tensor(1, 2))
        assert torch.equal(before - values(shard), lr * tensor(1, 2))
    with pytest.raises(InvalidRequestError, match=r"\[1\].*\[2\]"):
        shard.set_options(shard.begin(slice_of(9, 0, 1, 8), "a"), [Group(1, {"lr": 1.0})])


# -- backup workers


def backup(replicas, elements=1):
    """Make a shard with backup workers."""
    shard = BackupShard(Layout("float64", "sgd", (Group(elements, {"lr": 1.0}),)), replicas)
    shard.initialise(torch.zeros(elements, dtype=torch.float64), 0)
    return shard


@settings(deadline=None)
@given(st.data())
def test_backup_steps_with_the_mean_of_those_that_came(data):
    """The first complete gradients make the step, weighted by samples; others leave no trace."""
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    replicas = data.draw(st.integers(1, len(counts)))
    order = data.draw(st.permutations(range(len(counts))))
    elements = 2**16 + 3
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    gradients = torch.randn(len(counts), elements, dtype=torch.float64, generator=generator)
    shard = backup(replicas, elements)
    begun = [shard.begin(slice_of(0, *place, sum(counts))) for place in slices(counts)]
    sinks = [GradientSink(shard, contribution) for contribution in begun]
    for sink, gradient in zip(sinks, gradients, strict=True):
        send(sink, wire(gradient)[: 2**18])
    for i in order[:replicas]:
        assert not shard.is_complete
        send(sinks[i], wire(gradients[i])[2**18 :])
        sinks[i].close()
    assert shard.is_complete
    shard.step()

    weights = torch.tensor([float(counts[i]) for i in order[:replicas]], dtype=torch.float64)
    mean = (weights @ gradients[order[:replicas]]) / weights.sum()
    after = values(shard)
    torch.testing.assert_close(after, -mean, rtol=1e-12, atol=1e-14)
    for i in order[replicas:]:
        send(sinks[i], wire(gradients[i])[2**18 :])
        sinks[i].close()
        assert shard.has_used(slice_of(0, *slices(counts)[i]))
    assert torch.equal(values(shard), after)
    assert not shard.is_complete


def test_backup_waits_for_all_that_can_come():
    """Where losses leave fewer gradients than make a step, all of these are waited for."""
    shard = backup(3)
    shard.forfeit(0, 0, 2, 8)
    push(shard, 2, 2, 8, tensor(1))
    with pytest.raises(NotMemberError, match="slice at 0 was given up"):
        shard.begin(slice_of(0, 0, 2, 8))
    late = GradientSink(shard, shard.begin(slice_of(0, 4, 4, 8)))
    assert not shard.is_complete
    send(late, wire(tensor(4)))
    assert shard.is_complete
    shard.step()

    assert values(shard).tolist() == [-3]


@pytest.mark.parametrize("told_first", [False, True])
def test_backup_drops_a_part_that_was_lost(told_first):
    """Of a gradient whose worker died while sending it, nothing counts."""
    elements = 2**16
    shard = backup(3, elements)
    ones = torch.ones(elements, dtype=torch.float64)
    gone = GradientSink(shard, shard.begin(slice_of(0, 0, 1, 4)))
    send(gone, wire(100 * ones)[: 2**18])
    push(shard, 1, 3, 4, ones)
    assert not shard.is_complete
    if told_first:
        shard.forfeit(0, 0, 1, 4)
        gone.abort()
    else:
        gone.abort()
        assert not shard.is_complete
        shard.forfeit(0, 0, 1, 4)
    assert shard.is_complete
    shard.step()

    assert torch.equal(values(shard), -ones)
