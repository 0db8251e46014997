"""Groups that are broken by aborting them, with a stand-in for NCCL."""

import os
import threading

import pytest
import torch
from torch import distributed
from torch.distributed import HashStore

from idl.errors import InvalidRequestError
from tests.scripts.stand_in_nccl import StandInGroup, StandInWork
from worker.torch import abortable_carrier
from worker.torch.abortable_carrier import AbortableCarrier
from worker.torch.survivable_group import SurvivableGroup

SUM = distributed.AllreduceOptions()


@pytest.fixture
def two():
    """Two ranks' groups, one of which survives."""
    store = HashStore()
    groups = [StandInGroup(store, rank, 2) for rank in range(2)]
    yield SurvivableGroup(groups[0], AbortableCarrier(groups[0].abort, ())), groups[1]
    for group in groups:
        group.abort()


def test_the_host_waits_for_the_device(two, monkeypatch):
    """An operation under way is no gradient yet: a step is taken once it has ended; NCCL's `wait` returns."""
    survivor, other = two
    monkeypatch.setattr(StandInWork, "wait", lambda work: True)
    tensor = torch.ones(3)
    survivor.allreduce([tensor], SUM)
    outcome = []
    waits = threading.Thread(target=lambda: outcome.append(survivor.settle()))
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    other.allreduce([torch.ones(3)], SUM)
    waits.join(60)
    assert outcome == [None]
    assert tensor.tolist() == [2.0] * 3


def test_a_wait_ends_by_an_abort_from_another_thread(two):
    """Nothing is raised; the group is broken, although the operation seems to have ended well."""
    survivor, _ = two
    tensor = torch.ones(3)
    work = survivor.allreduce([tensor], SUM)
    cut = threading.Timer(0.1, survivor.cut)
    cut.start()
    assert work.wait()
    assert survivor.settle() == "another attempt has begun"
    assert tensor.isnan().all()
    again = torch.ones(3)
    assert survivor.allreduce([again], SUM).wait()
    assert again.tolist() == [1.0] * 3


def test_what_has_ended_well_before_an_abort_counts(two):
    """The worker may have stepped with it; only what follows does not count."""
    survivor, other = two
    survivor.allreduce([torch.ones(3)], SUM)
    other.allreduce([torch.ones(3)], SUM).wait()
    assert survivor.settle() is None
    survivor.cut()
    assert survivor.settle() is None
    survivor.allreduce([torch.ones(3)], SUM).wait()
    assert survivor.settle() == "another attempt has begun"


def test_indices_that_do_not_come_are_a_ranks_own(two):
    """By others' `DistributedDataParallel` places its buckets, in a group's second iteration."""
    survivor, other = two
    options = distributed.BroadcastOptions()
    options.rootRank = 1
    indices = torch.tensor([2, 0, 1], dtype=torch.int32)
    other.broadcast([torch.tensor([1, 2, 0], dtype=torch.int32)], options)
    survivor.broadcast([indices], options).wait()
    assert indices.tolist() == [1, 2, 0]
    threading.Timer(0.1, survivor.cut).start()
    indices = torch.tensor([2, 0, 1], dtype=torch.int32)
    survivor.broadcast([indices], options).wait()
    assert indices.tolist() == [2, 0, 1]
    assert survivor.settle() == "another attempt has begun"


def test_an_error_on_the_device_breaks_the_group():
    """It is told by the work, once that has ended; as where a member's store has gone."""

    class GoneStore(HashStore):
        pass

    def check(keys):
        raise RuntimeError("Connection reset by peer")

    store = GoneStore()
    group = StandInGroup(store, 0, 2)
    store.check = check
    survivor = SurvivableGroup(group, AbortableCarrier(group.abort, ()))
    survivor.allreduce([torch.ones(3)], SUM)
    assert survivor.settle() == "remote process exited: Connection reset by peer"


def test_a_group_that_is_closed_is_aborted_first(two):
    """Else its end would wait for ranks that have gone."""
    survivor, _ = two
    survivor.allreduce([torch.ones(3)], SUM)
    with pytest.raises(AssertionError):
        survivor._inner.shutdown()
    survivor.close()
    survivor._inner.shutdown()


def test_an_abort_that_takes_long_holds_up_nobody(two):
    """It is called by the thread of the heartbeats; the host's wait ends at once."""
    _, other = two
    go_on = threading.Event()
    carrier = AbortableCarrier(go_on.wait, ())
    carrier.run(lambda: other.allreduce([torch.ones(3)], SUM), [])
    carrier.cut()
    assert carrier.settle() == "another attempt has begun"
    go_on.set()
    assert carrier.close()


def test_nccl_does_not_end_the_process(monkeypatch):
    """Whatever torchrun has set, which has processes end by an error of NCCL's."""
    monkeypatch.setattr(os, "environ", {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"})
    abortable_carrier.keep_alive()
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "0"


def test_a_level_of_debugging_with_which_nccl_would_end_the_process_is_refused(monkeypatch):
    """The error names it, and what is allowed."""
    monkeypatch.setattr(os, "environ", {})
    level = distributed.get_debug_level()
    distributed.set_debug_level(distributed.DebugLevel.DETAIL)
    try:
        with pytest.raises(InvalidRequestError, match=r"TORCH_DISTRIBUTED_DEBUG DETAIL: .* INFO and OFF are"):
            abortable_carrier.keep_alive()
    finally:
        distributed.set_debug_level(level)
    assert os.environ == {}
