"""The findings of `evenpace lab chaos`."""

from collections.abc import Mapping

from lab.planted.finding import Change, Planted

PLANTED = (
    Planted(
        'A worker ends with "no call came within 10 s',
        (
            Change(
                "rpc/server.py",
                "stalled = late > _STALL_SECONDS and not stalled",
                "stalled = False",
            ),
        ),
        "tests/rpc/test_held_up.py -k frozen",
    ),
    Planted(
        'A worker ends with "is not a member ... died: its',
        (
            Change(
                "batchsize_manager/job/presence.py",
                "if cut_off is not None:",
                "if False:",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py -k only_cut_off",
    ),
    Planted(
        "A worker that was killed and started again ends",
        (
            Change(
                "batchsize_manager/job/members.py",
                "lives = member.heard_at > since or not (member.beats or member.is_returning)",
                "lives = True",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py -k not_heard_again",
    ),
    Planted(
        "A shard that starts with a wrong time, or after a",
        (
            Change(
                "ps/jobs.py",
                "self._next_sweep = now + self._config.keep",
                "self._next_sweep = now",
            ),
        ),
        "tests/ps/test_ps_checkpoints.py -k away_for_long",
    ),
    Planted(
        'A worker ends with "rewind to version 10: there is',
        (
            Change(
                "ps/shard_job.py",
                'raise RewoundError(\n                f"rewind to version {version}: there is',
                'raise InvalidRequestError(\n                f"rewind to version {version}: there is',
            ),
            Change(
                "ps/shard_job.py",
                "no checkpoint'}\",\n                self.attempt,\n",
                "no checkpoint'}\"\n",
            ),
        ),
        "tests/worker/test_recovery.py -k loses_the_agreed",
    ),
    Planted(
        'A worker ends with "batch_processing_time 0.0 ...',
        (
            Change(
                "worker/meter.py",
                "        self.stopwatch.take()\n        self._transfers.clear()\n        self._recorder",
                "        self._transfers.clear()\n        self._recorder",
            ),
        ),
        "tests/worker/test_session_rewind.py -k taken_off",
    ),
    Planted(
        "The history of a long job lacks iterations while",
        (
            Change(
                "batchsize_manager/storage/past.py",
                "if earlier and earlier[-1].iteration + 1 < begins:",
                "if False:",
            ),
        ),
        "tests/batchsize_manager/test_manager_restart.py -k no_gap",
    ),
    Planted(
        "A worker that was limited by stopping and continuing",
        (
            Change(
                "worker/resources/duty_cycle.py",
                "            time.sleep(wait)\n",
                "            if signal.sigtimedwait(_ENDING, wait) is not None:\n                return\n",
            ),
        ),
        "tests/worker/resources/test_cpu_limits.py -k stopped_itself",
    ),
    Planted(
        "A manager that was killed is not started again while",
        (
            Change(
                "batchsize_manager/storage/state_file.py",
                "        if new:  # else nothing is",
                '        execute("PRAGMA user_version=6")\n        if new:  # else nothing is',
            ),
        ),
        "tests/batchsize_manager/storage/test_state.py -k opened_on_a_full_disk",
    ),
    Planted(
        "With `--lookahead`, a job stands still for two",
        (
            Change(
                "worker/membership.py",
                "wanted=lambda: request.attempt == self.attempt",
                "wanted=lambda: True",
            ),
        ),
        "tests/worker/test_lookahead.py -k attempt_is_over",
    ),
    Planted(
        "A worker whose network was gone for some seconds",
        (
            Change(
                "batchsize_manager/job/members.py",
                "gone = {name: member for name, member in self._cut_off.items() if name not in self.by_name}",
                "gone: dict[str, Member] = {}",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py -k started_again",
    ),
    Planted(
        "With all-reduce, a job stands still for a minute",
        (
            Change(
                "worker/torch/formed_group.py",
                "            reach(host, port, _FORM_SECONDS.total_seconds(), "
                "lambda: self._check_not_over(attempt))\n",
                "",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k given_up",
    ),
    Planted(
        "With all-reduce, a job begins again at iteration 0,",
        (
            Change(
                "worker/exchanges/all_reduce.py",
                "self._formed, self._steps = first.attempt, first.iteration",
                "self._formed = first.attempt",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k given_last",
    ),
    Planted(
        "With all-reduce, a worker that takes its first",
        (
            Change(
                "worker/torch/training_state.py",
                "        self.note()  # what was noted before is of another state\n",
                "",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k given_last",
    ),
    Planted(
        "With all-reduce, a job is over, although the only",
        (
            Change(
                "batchsize_manager/job/regrouping.py",
                " and not self._presence.may_return:",
                ":",
            ),
        ),
        "tests/batchsize_manager/job/test_rendezvous.py -k cut_off_is_waited",
    ),
    Planted(
        "With all-reduce, workers wait for minutes after",
        (
            Change(
                "worker/torch/survivable_group.py",
                "                _break_when_unheard(one)\n",
                "",
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k packets_are_lost",
    ),
    Planted(
        "A worker that trains alone is said to have a NaN",
        (
            Change(
                "worker/torch/consecutive.py",
                "            self._squares = []\n        elif",
                '            self._squares = [float("nan")] * 3\n        elif',
            ),
        ),
        "tests/worker/torch/test_formed_groups.py -k formed_anew",
    ),
)

UNPLANTED: Mapping[str, str] = {
    "Chaos itself: the ledger has a gap after the disk": "Only a run of `evenpace lab chaos` shows it.",
    "Chaos itself: under libfaketime 0.9.10,": "It is libfaketime's own.",
}
