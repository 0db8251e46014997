"""The findings of jobs of many workers and shards, of long ones, and of disks and networks that stall."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED = (
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
