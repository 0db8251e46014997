"""The findings of a third close reading, and of scripts in the shape of public reports."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED: tuple[Planted, ...] = (
    Planted(
        "Ctrl-C is ignored for ten minutes, and a recovery",
        (Change("rpc/client.py", "        if not wanted():", "        if False:"),),
        "tests/worker/test_shard_clients.py -k 'is_away and refused'",
    ),
)

UNPLANTED: Mapping[str, str] = {}
