"""The findings of state machines that are driven at random, and of benchmarks that load and attack."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED: tuple[Planted, ...] = (
    Planted(
        "A push is lost: a step lacks a worker's samples.",
        (
            Change(
                "ps/shard_job.py",
                "if instance not in (None, self.instance):",
                "if False and instance not in (None, self.instance):",
            ),
        ),
        "tests/ps/test_ps_restarts.py tests/ps/test_shard_attempts.py",
    ),
    Planted(
        "A worker is taken out for being late with a part",
        (
            Change(
                "batchsize_manager/job/job.py",
                "            self.members.by_name[name].reported_at = now  # so that it has time for it\n",
                "            pass\n",
            ),
        ),
        "tests/batchsize_manager/job/test_redo.py",
    ),
    Planted(
        "A job stands still while one worker is stopped,",
        (
            Change(
                "batchsize_manager/job/deadlines.py",
                "if member.ready > iteration or (name not in under_way.open and name not in under_way.done)",
                "if member.ready > iteration",
            ),
        ),
        "tests/batchsize_manager/job/test_redo.py",
    ),
    Planted(
        "With `--scale-batch`, workers that a network had",
        (
            Change(
                "batchsize_manager/job/presence.py",
                "self._planner.batches.padded(len(self._members) + 1)",
                "self._planner.batches.padded(len(self._members.staying))",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py",
    ),
    Planted(
        "Workers count as late while a job recovers, when",
        (
            Change(
                "batchsize_manager/job/iterations.py",
                "        self.progress.clear()\n        self.planned = self.first_open\n",
                "        pass\n",
            ),
        ),
        "tests/batchsize_manager/job/test_recovery.py",
    ),
    Planted(
        "A job stands still for good: one worker has reported",
        (
            Change(
                "batchsize_manager/job/deadlines.py",
                "any(name in under_way.open for under_way in progress.values())",
                "any(not done.has_piece(name) and name in done.open for done in progress.values())",
            ),
        ),
        "tests/batchsize_manager/job/test_redo.py -k silent",
    ),
    Planted(
        "A second worker takes the name of one that lives,",
        (
            Change(
                "batchsize_manager/job/job.py",
                "member is not None and (member.back_by is None or member.is_returning)",
                "member is not None and member.back_by is None",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py",
    ),
    Planted(
        'A worker ends with "report of iteration 561, but',
        (
            Change(
                "batchsize_manager/job/job.py",
                "if 0 <= report.iteration <= member.reported:",
                "if member.ready < report.iteration <= member.reported:",
            ),
        ),
        "tests/batchsize_manager/job/test_return.py",
    ),
    Planted(
        "A worker that freezes right after it has joined,",
        (
            Change(
                "batchsize_manager/job/members.py",
                "beats=beats and self._config.heartbeat > 0",
                "beats=False",
            ),
        ),
        "tests/batchsize_manager/job/test_redo.py -k promised",
    ),
    Planted(
        "A job ends when one of its workers is gone for",
        (
            Change(
                "batchsize_manager/job/presence.py",
                "if self._members.started and redoes and not waits and",
                "if not self._members.started and",
            ),
        ),
        "tests/batchsize_manager/job/test_redo.py",
    ),
    Planted(
        "A job stands still for two minutes, and then a",
        (Change("ps/service.py", "restored=job.is_restored or None", "restored=None"),),
        "tests/ps/test_ps_restarts.py -k says_so",
    ),
    Planted(
        "A job waits for ever after its first worker has",
        (
            Change(
                "batchsize_manager/job/job.py",
                "if plan.iteration == self.first_iteration and not progress.done and self.members.staying:",
                "if False:",
            ),
        ),
        "tests/batchsize_manager/job/test_recovery.py -k before_any_report",
    ),
    Planted(
        "A few kilobytes in a checkpoint's `learned` make",
        (
            Change(
                "batchsize_manager/learning/saved_models.py",
                "        _check_sizes(packed)\n",
                "        pass\n",
            ),
        ),
        "tests/batchsize_manager/learning/test_saved_models.py",
    ),
    Planted(
        'A worker that is back ends with "iteration 10',
        (Change("worker/data/slices.py", "if assignment is finished:", "if assignment == finished:"),),
        "tests/worker/test_recovery.py -k stay_frozen",
    ),
    Planted(
        "Some iterations have another learning rate than",
        (
            Change(
                "worker/step_options.py",
                "in reversed(self._changes) if since <= iteration",
                "in reversed(self._changes)",
            ),
        ),
        "tests/worker/test_step_options.py",
    ),
    Planted(
        "A job goes back to an old checkpoint, or ends",
        (Change("ps/shard_job.py", "return not self.shared or self.settled", "return True or self.settled"),),
        "tests/ps/test_shard_attempts.py",
    ),
    Planted(
        "Barriers stand still for 8 to 11 s.",
        (Change("rpc/peer.py", "_TURN_SECONDS = 0.01", "_TURN_SECONDS = 1e9"),),
        "tests/rpc/test_fairness.py",
    ),
    Planted(
        "After a job went back twice, checkpoints of what",
        (Change("ps/shard_job.py", "self._awaited = None  # an attempt that is over began it;", "pass  #"),),
        "tests/ps/test_slow_disks.py",
    ),
)

UNPLANTED: Mapping[str, str] = {}
