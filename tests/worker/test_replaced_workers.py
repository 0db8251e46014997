"""Workers whose names others have got, while they were frozen."""

import contextlib
import signal

import pytest

from batchsize_manager.client import ManagerClient
from lab.observer import Observer
from tests.services import is_frozen
from tests.worker.least_squares import trained_alone
from tests.worker.processes import end_well, processes
from tests.worker.test_recovery import (
    in_process_manager,
    shards_here,
)


@pytest.mark.simulated
@pytest.mark.parametrize(("noticed", "point"), [("by absence", "10:report:0"), ("by contest", "10:push:0")])
def test_a_worker_that_thaws_after_it_was_replaced_ends(tmp_path, wait_until, noticed, point):
    """It says so and disturbs nobody; the replacement wins, though the other still counts as a member."""
    absence = 5.0 if noticed == "by absence" else 600.0
    job = {"heartbeat": 0.2, "silence": 1.0, "absence": absence, "lookahead": 2}
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
        if noticed == "by absence":
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
