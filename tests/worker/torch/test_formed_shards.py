"""FSDP2 in groups that the manager forms: real processes, a real manager, gloo."""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from idl.errors import InvalidRequestError
from idl.folders import BEGUN_STATE, KEPT_STATE
from tests.worker.torch.test_formed_groups import (
    IMPATIENT,
    SEEDS,
    check_equal_to_one_process,
    first_seed,
    running,
)
from worker.torch.group_internals import put_in_place
from worker.torch.shards import Shards, mesh_shape
from worker.torch.survivable_group import GlooCarrier, SurvivableGroup

COPIES = ("--shard-size", "2")  # copies of two shards each, at least


@pytest.fixture
def alone():
    """Put this process into a group of its own."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def changes_of_size(seen):
    """Return the sizes of the groups that a worker was in, one after the other."""
    sizes = [line[5] for line in seen]
    return [size for size, before in zip(sizes, [0, *sizes], strict=False) if size != before]


@pytest.mark.ci
def test_shards_go_on_in_other_groups(tmp_path, wait_until):
    """Where a worker joins two and another is drained, parameters stay those of one process.

    Nobody is restarted; schedulers, options and what else the script has reach who joins.
    """
    ahead = ("--lookahead", "1")
    with running(tmp_path, wait_until, 2, "--sharded", manager=ahead) as run:
        run.start("ab")
        run.reaches("a", 12)
        first = first_seed(run, "ab")
        run.start("c")
        run.reaches("c", 1)
        assert run.seen("c")[0][1] > 12
        run.reaches("a", run.seen("c")[0][1] + 3)
        run.client.drain("default", "a")
        drained = run.end("a")
        assert "drained" in drained["released"]
        assert "No backend" not in run.log("a")  # a warning of PyTorch's
        check_equal_to_one_process(drained, first, run.seen("a")[-1][1] + 1, "adam")
        iterations = run.ends_as_one_process("bc", first)
        assert changes_of_size(run.seen("b")) == [2, 3, 2]
        assert [line[1] for line in run.seen("b")] == list(range(iterations))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [(), *(pytest.param(one, marks=pytest.mark.ci) for one in (["--sharded"], COPIES))]
)
def test_workers_begin_again_with_the_state_that_others_have_written_down(tmp_path, wait_until, arguments):
    """Once they have, they go on where they were, or others do after their end, with another manager."""
    keep = tmp_path / "keep"
    options = ("--keep", str(keep))

    def suspend():
        (keep / KEPT_STATE).unlink(missing_ok=True)
        run.client.pause("default", keep=True)
        wait_until(lambda: run.client.status("default").summary.state == "paused", "the pause")
        assert (keep / KEPT_STATE).exists()
        return run.reached("ab")

    with running(tmp_path, wait_until, 2, *arguments) as run:
        run.start("ab", options=options)
        run.reaches("a", 12)
        first = first_seed(run, "ab")
        here = suspend()
        run.client.resume("default")
        run.reaches("a", here + 3)
        here = suspend()
        assert [line[1] for line in run.seen("a")] == list(range(here + 1))
    (keep / KEPT_STATE).rename(keep / BEGUN_STATE)
    with running(tmp_path, wait_until, 3, *arguments) as run:
        run.start("cde", options=options)
        run.reaches("c", here + 3)
        assert run.seen("c")[0][1] == here + 1
        run.ends_as_one_process("cde", first)


@pytest.mark.ci
def test_shards_that_others_have_outlive_a_worker(tmp_path, wait_until):
    """One is killed, one joins, and one is frozen.

    The frozen one is a member again when it is back, and takes the others' state.
    """
    with running(tmp_path, wait_until, 4, *COPIES, "--clip", "0.1", manager=IMPATIENT) as run:
        run.start("abcd")
        run.reaches("a", 12)
        first = first_seed(run, "abcd")
        run.kill("b")
        run.reaches("a", run.reached("abcd") + 3)
        run.start("e")
        run.reaches("e", 1)
        run.reaches("a", run.reached("acde") + 3)
        run.freeze("c")
        run.reaches("a", run.reached("acde") + 5)
        run.thaw("c")
        run.reaches("c", run.reached("a"))
        run.ends_as_one_process("acde", first, clip=0.1)
        assert changes_of_size(run.seen("a")) == [4, 3, 4, 3, 4]


@pytest.mark.ci
def test_deaths_while_shards_are_put_together_lose_none(tmp_path, wait_until):
    """Each of the others waits for one who dies, and none of one shard's copies knows of the last step.

    One has made that step, and makes it again.
    """
    with running(tmp_path, wait_until, 4, *COPIES) as run:
        run.start("abcd", "--break-halfway", "20", "1", "3", "--die-assembling", "4", "0", "3")
        wait_until(lambda: run.reached("abcd") >= 20, "iteration 20")
        by_rank = {run.seen(name)[0][4]: name for name in "abcd"}
        others = by_rank[1] + by_rank[2]
        run.reaches(others[0], 25)
        assert all(run.seen(by_rank[rank])[-1][:2] == (1, 20) for rank in (0, 3))
        run.ends_as_one_process(others, SEEDS[by_rank[0]])
        assert "after a step that others had made" in run.log(by_rank[1])


@pytest.mark.ci
def test_the_others_end_when_all_copies_of_a_shard_are_gone(tmp_path, wait_until):
    """A line says what to do."""
    with running(tmp_path, wait_until, 4, *COPIES) as run:
        run.start("abcd")
        run.reaches("a", 12)
        killed = [name for name in "abcd" if run.seen(name)[-1][4] % 2]
        for name in killed:
            run.kill(name)
        for name in set("abcd").difference(killed):
            said = run.fails(name)
            assert "no worker has shard 1 of 2 any more" in said
            assert "it goes on from the script's checkpoint" in said


def test_nothing_but_a_pass_goes_on_with_anything(alone):
    """In a broken group: what is gathered to be saved raises an error, and after the step all does."""
    carrier, ones, functional = GlooCarrier([]), torch.ones(2), torch.ops._c10d_functional
    inner = distributed.new_group([0])
    group = SurvivableGroup(inner, carrier)
    put_in_place(group, inner)
    carrier._break("a rank has gone")
    functional.wait_tensor(functional.all_reduce(ones, "sum", group.group_name))
    distributed.all_gather_single(torch.empty(2), ones, group)
    with pytest.raises(RuntimeError, match="a rank has gone"):
        functional.all_gather_into_tensor(ones, 1, group.group_name)
    carrier.raises = True
    with pytest.raises(RuntimeError, match="a rank has gone"):
        distributed.all_gather_single(torch.empty(2), ones, group)


def model_and_optimizer(mesh=None):
    """Return a model with tied weights in FSDP2, whose parts have options of their own, and its optimiser."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3)).double()
    model[2].weight = model[0].weight
    fully_shard(
        [model[0], model[2]],
        mesh=mesh,
        reshard_after_forward=False,
        mp_policy=MixedPrecisionPolicy(output_dtype=torch.float64),
    )
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def step(model, optimizer):
    """Take a step."""
    optimizer.zero_grad()
    model(torch.ones(2, 6, dtype=torch.float64)).square().mean().backward()
    optimizer.step()


def whole(model):
    """Return all parameters by name."""
    return {
        name: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for name, value in model.named_parameters()
    }


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 2])
def test_nothing_changes_where_shards_are_gathered_and_scattered(alone, shard_size):
    """Parameters, the optimiser's state, and what `fully_shard` was called with."""
    names = ("copies", "shards") if shard_size else ("shards",)
    mesh = init_device_mesh("cpu", mesh_shape(1, shard_size), mesh_dim_names=names)
    model, optimizer = model_and_optimizer(mesh)
    expected, its_optimizer = model_and_optimizer()
    model[0].set_gradient_divide_factor(2.0)
    expected[0].set_gradient_divide_factor(2.0)
    kinds = list(map(type, model.modules()))
    shards = Shards(model, optimizer, shard_size)
    for _ in range(3):
        step(model, optimizer)
        step(expected, its_optimizer)
        shards.gather()
        assert shards.is_whole
        assert not any(isinstance(value, DTensor) for value in model.parameters())
        assert [type(module).__name__ for module in model] == ["Linear", "Tanh", "Linear", "Linear"]
        shards.scatter(mesh)
        assert not shards.is_whole
        assert [kind.__name__ for kind in kinds] == [type(module).__name__ for module in model.modules()]
    step(model, optimizer)
    step(expected, its_optimizer)
    assert model[0].weight is model[2].weight
    assert shards.axes == names
    for name, value in whole(expected).items():
        assert torch.equal(whole(model)[name], value), name
    (group,) = model[0]._get_fsdp_state()._fsdp_param_groups
    assert group.gradient_divide_factor == 2.0
    assert group.post_forward_mesh_info is None
    assert model[0]._get_fsdp_state()._mp_policy.output_dtype == torch.float64
    state = optimizer.state_dict()["state"]
    assert all(int(of["step"]) == 4 for of in state.values())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, "fully_shard with an offload_policy"),
        ({"shard_placement_fn": lambda parameter: Shard(parameter.ndim - 1)}, "fully_shard with placement"),
        ({"mesh": "two"}, "a mesh of 2 dimensions: give balance the `shard_size`"),
        ({"shard_size": 0}, "shard_size 0: must be at least 1"),
        ({"shard_size": 2}, "shard_size 2: only for fully_shard with a mesh of 2 dimensions"),
        ({"ignored_params": "bias"}, "0.bias is in no shard"),
    ],
)
def test_what_cannot_be_sharded_again_is_refused(alone, options, said):
    """Before anything has changed."""
    model = nn.Sequential(nn.Linear(4, 4))
    given = dict(options)
    shard_size = given.pop("shard_size", None)
    if "mesh" in given:
        given["mesh"] = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))
    if "ignored_params" in given:
        given["ignored_params"] = {model[0].bias}
    fully_shard(model, **given)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidRequestError, match=said):
        Shards(model, optimizer, shard_size)


@pytest.mark.parametrize("ranks", range(1, 17))
@pytest.mark.parametrize("shard_size", range(1, 7))
def test_no_rank_has_more_than_its_share(ranks, shard_size):
    """A copy is cut into as many shards as were asked for, or as few more as divide the ranks."""
    copies, shards = mesh_shape(ranks, shard_size)
    assert copies * shards == ranks
    assert shards >= min(shard_size, ranks)
    assert not any(ranks % fewer == 0 for fewer in range(min(shard_size, ranks), shards))


def test_an_optimiser_of_the_parameters_of_before_is_refused(alone):
    """It would step them in the place of the shards."""
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fully_shard(model)
    with pytest.raises(InvalidRequestError, match="make it after fully_shard"):
        Shards(model, optimizer)
