"""The findings of a third close reading, and of scripts in the shape of public reports."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED: tuple[Planted, ...] = (
    Planted(
        "Ctrl-C is ignored for ten minutes, and a recovery",
        (Change("rpc/client.py", "        if not wanted():", "        if False:"),),
        "tests/worker/test_shard_clients.py -k 'is_away and refused'",
    ),
    Planted(
        "Ctrl-C is ignored for up to half an hour while",
        (
            Change(
                "worker/torch/formed_group.py",
                'self._apart(attempt, _exchanged, "member", own, store, seat, _WAIT_SECONDS)',
                '_exchanged("member", own, store, seat, _WAIT_SECONDS)',
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k can_be_interrupted",
    ),
    Planted(
        "A script's connection to a database or a store",
        (
            Change(
                "worker/torch/formed_group.py",
                "for descriptor, both in new.items() if mark(*reversed(both)) in theirs}",
                "for descriptor, both in new.items()}",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k left_alone",
    ),
    Planted(
        "Whoever reaches the port of a process group's store",
        (
            Change(
                "worker/torch/outlines.py",
                "_filled(json.loads(text), flat)",
                "__import__('pickle').loads(text)",
            ),
            Change("worker/torch/formed_group.py", "listener.bind(at)", 'listener.bind(("", 0))'),
        ),
        "tests/worker/torch/test_training_state.py tests/worker/torch/test_formed_groups.py "
        "-k 'no_outline or members_use_alone'",
    ),
    Planted(
        "A pull ahead over a slow link is cut off after 20",
        (
            Change("rpc/peer.py", "self._given - unsent > self._taken:", "-unsent > self._taken:"),
            Change("rpc/peer.py", "max(self._taken, self._given - unsent)", "-unsent"),
        ),
        "tests/rpc/test_wire_peers.py -k more_slowly",
    ),
    Planted(
        "A job on a Ray cluster waits for good after a",
        (
            Change(
                "scheduler/ray/process_actor.py",
                "except Exception as error:",
                "except EvenpaceError as error:",
            ),
        ),
        "tests/scheduler/ray/test_process_actor.py",
    ),
    Planted(
        "Where half of 100 workers by all-reduce are cut off",
        (
            Change(
                "worker/torch/reaching.py",
                "        tries[name] = in_daemon(",
                "        wait(tries.values())\n        tries[name] = in_daemon(",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k all_at_once",
    ),
)

UNPLANTED: Mapping[str, str] = {}
