"""Groups that are resized while they train, by one command in one attempt: real processes, gloo."""

import contextlib
import json
import subprocess
import sys

import pytest

from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from tests.services import manager_process
from tests.worker.torch.test_formed_groups import PAUSE, Run, bits, check_equal_to_one_process, first_seed

pytestmark = pytest.mark.slow


def command(*words):
    """Run a command of evenpace; return what it prints."""
    line = [sys.executable, "-m", "evenpace", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
def test_a_group_is_resized_down_and_up(tmp_path, wait_until):
    """Two of four go by one command, in one attempt; one is awaited while it trains, and then joins."""
    with (
        manager_process("--workers", "4", "--policy", "even") as manager,
        Run(tmp_path, manager, wait_until, *PAUSE) as run,
        contextlib.closing(ManagerClient(manager)) as client,
    ):

        def summary():
            return client.status("default").summary

        run.start("abcd")
        run.reaches("a", 5)
        first = first_seed(run, "abcd")
        ranks = {member.worker: member.rank for member in client.status("default").members}
        assert ranks == {name: run.seen(name)[0][4] for name in "abcd"}
        with pytest.raises(InvalidRequestError, match="no worker 'x'"):
            client.resize("default", 2, ["x"])
        assert summary().attempt == 1
        said = command("job", "resize", "default", 2, "--drain", "d,a", "--manager", manager)
        assert "resized the job from 4 to 2 workers, and drained d, a, from iteration" in said
        for name in "da":
            assert "drained" in run.end(name)["released"]
        at = wait_until(lambda: [line for line in run.seen("b") if line[5] == 2], "a group of two")[0][1]
        run.reaches("b", at + 2)
        assert {line[0] for line in run.seen("b")} == {1, 2}  # attempts

        said = command("job", "resize", "default", 3, "--manager", manager)
        assert said.endswith("resized the job from 2 to 3 workers, of whom 1 is awaited\n")
        now = run.seen("b")[-1][1]
        assert "2 of 3 workers, 1 awaited" in command("status", "default", "--manager", manager)
        run.reaches("b", now + 3)
        assert (summary().members, summary().workers, summary().group_size) == (2, 3, 2)
        run.start("a")
        wait_until(lambda: summary().members == 3, "a third member")
        joined = wait_until(lambda: [line for line in run.seen("b") if line[5] == 3], "a group of three")
        run.reaches("b", joined[0][1] + 2)
        shown = command("status", "default", "--manager", manager)
        asked = command("status", "default", "--json", "--manager", manager)
        assert "3 workers  batches" in shown
        assert "all-reduce in groups that the manager forms, 3 in the group of attempt 3" in shown
        (job,) = json.loads(asked)["jobs"]
        drained, grown = job["group_changes"]
        assert (drained["attempt"], drained["iteration"], drained["size"]) == (2, at, 2)
        assert (drained["why"], grown["why"], grown["size"]) == ("d, a are drained", "a joins", 3)
        for change in (drained, grown):
            assert 0 < change["until_plan"] < change["until_step"]
            assert any(f"took {change['until_step']:.3g} s" in event["text"] for event in job["events"])

        ended, iterations = run.end_all("abc")
        assert len(set(map(bits, ended))) == 1
        check_equal_to_one_process(ended[0], first, iterations)
        assert [line[1] for line in run.seen("b")] == list(range(iterations))
