"""Groups of gloo's are given up where a member has died that had told its address."""

import datetime
import subprocess
import sys

import pytest
import torch
from torch import distributed
from torch.distributed import PrefixStore, TCPStore

from idl.errors import UnavailableError
from worker.daemon_thread import in_daemon
from worker.torch.gloo_connection import connected_apart

SHORT = datetime.timedelta(seconds=1)  # gloo takes five times as long


def make_group(store, size, apart):
    """Make PyTorch's default group as rank 0."""
    with connected_apart(apart):
        distributed.init_process_group("gloo", store=store, rank=0, world_size=size, timeout=SHORT)


@pytest.fixture
def store():
    """Return the store of a group."""
    return TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


@pytest.mark.slow
def test_a_group_with_a_dead_member_is_given_up(store, wait_until):
    """PyTorch knows of no group then, also once gloo has found out for itself, and makes the next one."""
    peer = subprocess.Popen([sys.executable, "-m", "tests.scripts.publish_gloo_address", str(store.port)])
    wait_until(lambda: store.num_keys() > 0, "the other member's address")
    peer.kill()
    peer.wait()
    made = []

    def give_up(make, *arguments, **options):
        made.append(in_daemon(make, *arguments, **options))
        raise UnavailableError("the attempt is over")

    with pytest.raises(UnavailableError, match="the attempt is over"):
        make_group(store, 2, give_up)
    (future,) = made
    assert not future.done(), "gloo tries to reach the other member"
    assert not distributed.is_initialized()
    with pytest.raises(RuntimeError, match="Gloo connectFullMesh failed"):
        future.result(120)
    assert not distributed.is_initialized()
    make_group(
        PrefixStore("next", store), 1, lambda make, *to, **how: in_daemon(make, *to, **how).result(120)
    )
    try:
        assert distributed.get_backend() == "gloo"
        backend = distributed.group.WORLD._get_backend(torch.device("cpu"))
        assert type(backend) is distributed.ProcessGroupGloo
    finally:
        distributed.destroy_process_group()
