"""The findings of state machines that are driven at random, and of benchmarks that load and attack."""

from collections.abc import Mapping

from lab.planted.finding import Change, Planted

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
                "self._planner.batches.cuts(len(self._members) + 1)",
                "self._planner.batches.cuts(len(self._members.staying))",
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
                "if self._members.started and recovers and not waits and",
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
                "if since <= iteration:",
                "if True:",
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
    Planted(
        "Samples are skipped or repeated after a restart",
        (Change("batchsize_manager/job/restoration.py", "    batches.restore(state.batch_changes)\n", ""),),
        "tests/batchsize_manager/job/test_recovery.py -k restored_where",
    ),
    Planted(
        "Transfers to a restarted worker hang, where each",
        (
            Change(
                "worker/partitions/partition.py",
                "        self.generation = -1\n        self.incarnation = incarnation\n",
                "        self.incarnation = incarnation\n",
            ),
        ),
        "tests/batchsize_manager/partitions/test_partitions.py -k no_other_can_have",
    ),
    Planted(
        "The manager grows to 158 MiB in 20 s, and on.",
        (
            Change(
                "batchsize_manager/job/history.py",
                "        self._size = 0\n",
                "        self._size = 0\n        self._objects: list[object] = []\n",
            ),
            Change(
                "batchsize_manager/job/history.py",
                "        self._records.append(record.named_as(self.last))\n",
                "        self._records.append(record.named_as(self.last))\n"
                "        self._objects.append(record.parts)\n",
            ),
        ),
        "tests/batchsize_manager/job/test_history.py -k packed",
    ),
    Planted(
        "4,000 workers take 43 s to join.",
        (
            Change(
                "batchsize_manager/job/job.py",
                "if self.members.started or len(self.members) >= self.members.wanted:",
                "if True:",
            ),
        ),
        "tests/batchsize_manager/job/test_job.py -k set_once",
    ),
    Planted(
        "The loading processes of a killed PyTorch worker",
        (Change("worker/torch/prefetching.py", "    end_with_parent(parent)\n", ""),),
        "tests/worker/torch/test_adapter.py -k killed",
    ),
    Planted(
        "All workers of a job end after ten minutes, although",
        (
            Change(
                "rpc/client.py",
                "seconds = min(_left(deadline), wait + self._silence)",
                "seconds = _left(deadline)",
            ),
        ),
        "tests/rpc/test_wire_client.py -k vanished",
    ),
    Planted(
        "`Session.close()` takes 37 s.",
        (Change("worker/heartbeat.py", "self._thread.join(_END_SECONDS)", "self._thread.join()"),),
        "tests/worker/test_heartbeat.py -k looked_up",
    ),
    Planted(
        "The state of a running job grows without end on",
        (
            Change(
                "batchsize_manager/storage/state_writer.py",
                "return self._file.is_longer(self._retention.nbytes or math.inf)",
                "return False",
            ),
        ),
        "tests/batchsize_manager/storage/test_state.py -k shortened",
    ),
    Planted(
        "`learned` leaves a job 1.6 times too slow for",
        (
            Change(
                "batchsize_manager/policies/measurements.py",
                "        self._doubt[workers] *= _DOUBT_GROWS\n",
                "",
            ),
        ),
        "tests/batchsize_manager/policies/test_learned.py -k two_spikes",
    ),
    Planted(
        "Pushing over four shards takes as long as over",
        (
            Change(
                "worker/shard_clients.py",
                "return [call(0)] if len(shards) == 1 else self._in_parallel(call, shards)",
                "return [call(shard) for shard in shards]",
            ),
        ),
        "tests/worker/test_shard_clients.py",
    ),
    Planted(
        "A job's pulls wait for seconds for another job's",
        (
            Change(
                "ps/checkpoint_store.py",
                "        self._thread.submit(self._copy_and_write, checkpoint, copied)\n",
                "        self._copy_and_write(checkpoint, copied)\n",
            ),
        ),
        "tests/ps/test_slow_disks.py -k each_job",
    ),
    Planted(
        "A worker that lives counts as silent while a shard",
        (Change("worker/membership.py", "self._fencing.start()", "self._fencing.run()"),),
        "tests/worker/test_heartbeat.py -k another_thread",
    ),
    Planted(
        "A service keeps no deadline any more.",
        (Change("rpc/periodic.py", "        return failing\n", "        return False\n"),),
        "tests/rpc/test_periodic.py -k told_once",
    ),
    Planted(
        "A job of many workers cannot be resumed, nor one",
        (
            Change(
                "batchsize_manager/policies/model_registry.py",
                "            del self._workers[worker]\n",
                "            pass\n",
            ),
            Change(
                "batchsize_manager/learning/uploads.py", "LEARNED_BYTES = 3 * 2**24", "LEARNED_BYTES = 2**20"
            ),
        ),
        "tests/batchsize_manager/policies/test_model_registry.py "
        "tests/batchsize_manager/learning/test_uploads.py -k 'bounded or 2000_workers'",
    ),
    Planted(
        "A job that was resumed from a checkpoint forgets",
        (
            Change(
                "batchsize_manager/policies/model_registry.py",
                "return self._registry.models()",
                "return self.policy.models()",
            ),
        ),
        "tests/batchsize_manager/policies/test_model_registry.py -k outlives",
    ),
)

UNPLANTED: Mapping[str, str] = {}
