"""The findings of state machines and loads that show as growth, waiting, or samples used twice."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED = (
    Planted(
        "Samples are skipped or repeated after a restart",
        (
            Change("batchsize_manager/job/restoration.py", "    batches.restore(batch_changes)\n", ""),
            Change("batchsize_manager/job/restoration.py", "if not batch_changes:", "if True:"),
        ),
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
                "if self.members.started or len(self.members) >= self.config.workers:",
                "if True:",
            ),
        ),
        "tests/batchsize_manager/job/test_job.py -k set_once",
    ),
    Planted(
        "The loading processes of a killed PyTorch worker",
        (Change("worker/torch/loader.py", "    end_with_parent(parent)\n", ""),),
        "tests/worker/torch/test_adapter.py -k killed",
    ),
    Planted(
        "All workers of a job end after ten minutes, although",
        (
            Change(
                "rpc/client.py",
                "self._socket.settimeout(min(_left(deadline), wait + self._silence))",
                "self._socket.settimeout(_left(deadline))",
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
)

UNPLANTED: Mapping[str, str] = {}
