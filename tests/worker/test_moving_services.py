"""Services that are started again elsewhere while a job trains, and workers whose names others have got."""

import contextlib
import os
import signal
import sys

import pytest

from batchsize_manager.client import ManagerClient
from lab.observer import Observer
from rpc import certificates, tokens
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.places import Places
from tests.services import RestartableService, address_of_our_own, is_frozen, serving, shard_service
from tests.worker.least_squares import Worker, trained_alone
from tests.worker.processes import end_well, processes
from tests.worker.test_recovery import (
    ITERATIONS,
    TWO_EVENLY,
    assert_trained,
    in_process_manager,
    once,
    shards_here,
)
from tests.worker.test_shards_named import ends


class MovingService(RestartableService):
    """A real service that a test starts again on another port, and of which a file says where it is.

    Args:
        arguments: Of `evenpace`, but for `--listen`.
        host: The name that the file has for this machine.
    """

    def __init__(self, file, *arguments, host="127.0.0.1"):
        super().__init__(*arguments)
        self._file, self._arguments, self._host = file, arguments, host
        self.places = Places(file=file)

    def start(self):
        """Start it, and write down where it is."""
        super().start()
        new = self._file.with_suffix(".new")
        new.write_text(str(Address(self._host, self.address.port)))
        os.replace(new, self._file)

    def move(self, leave):
        """Have it leave its port, in the way that is given, and start it on another one."""
        leave()
        self._own = address_of_our_own()
        self.command = [sys.executable, "-m", "evenpace", *self._arguments, "--listen", str(self._own)]
        self.start()


@contextlib.contextmanager
def moving(folder, *options, host="127.0.0.1"):
    """Start a manager and a shard that keep their state."""
    state = "--state", str(folder / "manager.state"), *TWO_EVENLY
    kept = "--state", str(folder / "ps.state"), "--checkpoint-every", "1"
    with (
        MovingService(folder / "manager", "manager", *state, *options, host=host) as manager,
        MovingService(folder / "ps", "ps", *kept, *options, host=host) as shard,
    ):
        yield manager, shard


@pytest.mark.simulated
@pytest.mark.parametrize("which", ["manager", "shard"])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_service_moves_and_the_job_goes_on(tmp_path, which, way):
    """Started again on another port with its state, a service is found there by what the file says."""
    with moving(tmp_path) as (manager, shard):
        moves = {"manager": manager, "shard": shard}[which]
        moved = once(20, lambda: moves.move(getattr(moves, way)))
        first = Worker(manager.places, [shard.places], "w0", ITERATIONS, moved)
        assert_trained([first, Worker(manager.places, [shard.places], "w1", ITERATIONS)])
        assert moves.starts == 2


@pytest.mark.slow
def test_services_move_with_tls_and_tokens(tmp_path):
    """Certificates are for the name in the file, and the token goes to the new place, too."""
    certificates.create_authority(tmp_path, 10)
    certificates.issue(tmp_path, "service", ["localhost"], 10)
    certificates.issue(tmp_path, "worker", [], 10)
    key = tmp_path / "tokens.key"
    tokens.write_new_key(key, add=False)
    token = tmp_path / "token"
    token.write_text(tokens.issue(tokens.TokenKeys(key), "default", 0))
    ours = Credentials.of_folder(tmp_path / "worker", token)
    options = "--tls", str(tmp_path / "service"), "--token-key", str(key)
    with moving(tmp_path, *options, host="localhost") as (manager, shard):

        def both_move():
            manager.move(manager.kill)
            shard.move(shard.kill)

        moved = once(20, both_move)
        where = manager.places, [shard.places]
        first = Worker(*where, "w0", ITERATIONS, moved, credentials=ours)
        assert_trained([first, Worker(*where, "w1", ITERATIONS, credentials=ours)])
        assert manager.starts == shard.starts == 2


def test_two_files_with_one_shard_are_refused(tmp_path):
    """The same shard is named twice, however its places are written."""
    with in_process_manager(1) as manager, serving(shard_service()) as shard:
        (tmp_path / "a").write_text(str(shard))
        (tmp_path / "b").write_text(f"127.0.0.1:{address_of_our_own().port},localhost:{shard.port}")
        files = [Places(file=tmp_path / name) for name in "ab"]
        told = ends(Worker(manager, files, "w0", ITERATIONS))
    assert "name each shard once" in told


# -- workers whose names are given to others


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("noticed", "point", "lookahead"),
    [
        ("by absence", "10:report:0", 2),
        ("by contest", "10:push:0", 2),
        ("by an operator", "10:push:0", 0),
    ],
)
def test_a_worker_that_thaws_after_it_was_replaced_ends(tmp_path, wait_until, noticed, point, lookahead):
    """It says so and disturbs nobody; the replacement wins, though the other still counts as a member."""
    absence = 5.0 if noticed == "by absence" else 600.0
    silence = 600.0 if noticed == "by an operator" else 1.0
    job = {"heartbeat": 0.2, "silence": silence, "absence": absence, "lookahead": lookahead}
    arguments = ["--iterations", "60"]
    with (
        in_process_manager(2, **job) as manager,
        shards_here(tmp_path) as shards,
        contextlib.ExitStack() as stack,
    ):
        observer = Observer(manager, tuple(shards))
        stack.callback(observer.close)

        def start(name, folder, freeze=None):
            folder.mkdir(exist_ok=True)
            started = processes(folder, manager, shards, [name], freeze, arguments=arguments)
            return stack.enter_context(started)

        def wait_for(event, count=1):
            wait_until(
                lambda: observer.poll() and sum(e.startswith(event) for e in observer.events) == count, event
            )

        client = stack.enter_context(contextlib.closing(ManagerClient(manager)))
        others = start("w0", tmp_path / "others")
        old = start("w1", tmp_path / "old", {"w1": point})
        wait_until(lambda: is_frozen(old["w1"]), "w1 to be at its point")
        client.pause("default")  # lest the job end before the replacement has started
        if noticed == "by an operator":
            # Its last heartbeat is not held back any more, which would be answered by the removal.
            wait_until(
                lambda: any(m.worker == "w1" and m.silence > 1.0 for m in client.status("default").members),
                "w1 to have been silent for longer than between heartbeats",
            )
            assert client.remove("default", "w1") == "an operator has taken w1 out, which is gone"
        elif noticed == "by absence":
            wait_for("w1 died: nothing was heard")
        else:
            wait_for("w1 is silent; the others do its part")
            assert "w1" in observer.members
        new = start("w1", tmp_path / "new")
        wait_for("w1 joined", 2)
        old["w1"].send_signal(signal.SIGCONT)
        wait_until(lambda: old["w1"].poll() is not None, "the end of the one that was replaced")
        said = (tmp_path / "old" / "w1.log").read_text()
        assert old["w1"].returncode == 1, said
        assert "another start of it has its name now, as incarnation" in said.splitlines()[-1]
        client.resume("default")
        end_well(tmp_path / "others", others, wait_until, ["w0"], trained_alone(60))
        end_well(tmp_path / "new", new, wait_until, ["w1"], trained_alone(60))
        observer.poll()
    assert sum(e.startswith("w1 joined") for e in observer.events) == 2
