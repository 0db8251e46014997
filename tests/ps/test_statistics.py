"""Statistics, such as batch normalisation's: the weighted mean over the samples, and no optimiser on them."""

import pytest
import torch

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from ps.asynchronous_shard import AsynchronousShard
from ps.backup_shard import BackupShard
from ps.shard import GradientSink, Shard
from tests.ps.tensors import push, send, slice_of, tensor, values, wire
from tests.services import open_request

MOMENTUM = {"lr": 1.0, "momentum": 0.9, "weight_decay": 0.1}


def mixed(kind=Shard, parameters=2, statistics=3, options=MOMENTUM, **arguments):
    """Make a shard of ones: parameters, statistics, and one parameter more."""
    groups = (Group(parameters, options), Group(statistics, {}, statistics=True), Group(1, options))
    layout = Layout("float64", "sgd", groups)
    shard = kind(layout, **arguments)
    shard.initialise(torch.ones(layout.elements, dtype=torch.float64), 0)
    return shard


def test_the_optimiser_does_not_see_statistics():
    """Parameters beside statistics change to the last bit as they do without them."""
    beside = mixed()
    alone = Shard(Layout("float64", "sgd", (Group(2, MOMENTUM), Group(1, MOMENTUM))))
    alone.initialise(torch.ones(3, dtype=torch.float64), 0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        new = torch.randn(6, dtype=torch.float64, generator=generator)
        push(beside, 0, 1, 1, new)
        push(alone, 0, 1, 1, new[[0, 1, 5]])
        for shard in (beside, alone):
            shard.step()
        assert torch.equal(values(beside)[[0, 1, 5]], values(alone))
        assert torch.equal(values(beside)[2:5], new[2:5])
    slot = torch.frombuffer(bytearray(beside.slot("momentum_buffer")), dtype=torch.float64)
    assert slot[2:5].tolist() == [0, 0, 0]
    assert slot[[0, 1, 5]].abs().min() > 0


def test_statistics_of_a_batch_that_is_lost_stay():
    """If no gradient of a batch arrives, neither parameters nor statistics change."""
    shard = mixed(BackupShard, replicas_to_aggregate=1)
    shard.forfeit(0, 0, 3, 3)
    shard.step()
    assert values(shard).tolist() == [1] * 6
    assert shard.version == 1


def test_statistics_in_the_other_modes():
    """With backup workers the mean is over those that arrived; asynchronously, each push sets the values."""
    backup = mixed(BackupShard, replicas_to_aggregate=1)
    push(backup, 1, 3, 4, tensor(0, 0, 5, 6, 7, 0))
    backup.step()
    assert values(backup)[2:5].tolist() == [5, 6, 7]

    shard = mixed(AsynchronousShard)
    for worker, new in (("a", (1, 2, 3)), ("b", (4, 5, 6))):
        sink = GradientSink(shard, shard.begin(slice_of(0, 0, 1, 2), worker))
        send(sink, wire(tensor(0, 0, *new, 0)))
        sink.close()
        shard.step()
        assert values(shard)[2:5].tolist() == list(new)


@pytest.mark.parametrize("kind", [Shard, AsynchronousShard])
def test_options_change_beside_statistics(kind):
    """A schedule's new options apply to the groups of parameters alone."""
    shard = mixed(kind, options={"lr": 1.0})
    new = [Group(2, {"lr": 0.5}), Group(3, {}, statistics=True), Group(1, {"lr": 0.25})]
    contribution = shard.begin(slice_of(0, 0, 1, 1), "w")
    shard.set_options(contribution, new)
    sink = GradientSink(shard, contribution)
    send(sink, wire(tensor(1, 1, 8, 8, 8, 1)))
    sink.close()
    shard.step()
    assert values(shard).tolist() == [0.5, 0.5, 8, 8, 8, 0.75]

    with pytest.raises(InvalidRequestError, match="may not change"):
        shard.set_options(
            shard.begin(slice_of(1, 0, 1, 1), "w"),
            [Group(2, {"lr": 0.5}), Group(3, {"lr": 1.0}), Group(1, {"lr": 0.25})],
        )


def test_statistics_are_a_part_of_what_workers_must_agree_on(pusher):
    """A worker that treats as parameters what others treat as statistics is refused."""
    group = type(open_request(pusher.identity, 1).groups[0])
    groups = [group(1, {"lr": 1.0}), group(999, None, True)]
    with pytest.raises(InvalidRequestError, match=r"1000 elements.*999 statistics"):
        pusher.client.call("open", open_request(pusher.identity, 1000, groups=groups))
