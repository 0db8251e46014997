"""The findings of state machines that are driven at random, and of benchmarks that load and attack."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Planted

PLANTED: tuple[Planted, ...] = ()

UNPLANTED: Mapping[str, str] = {}

NOT_YET = (
    "A push is lost: a step lacks a worker's samples.",
    "Samples are skipped or repeated after a restart",
    "A worker is taken out for being late with a part",
    "A job stands still while one worker is stopped,",
    "With `--scale-batch`, workers that a network had",
    "Workers count as late while a job recovers, when",
    "Transfers to a restarted worker hang, where each",
    "Barriers stand still for 8 to 11 s.",
    "The manager grows to 158 MiB in 20 s, and on.",
    "4,000 workers take 43 s to join.",
    "A few kilobytes in a checkpoint's `learned` make",
    "The loading processes of a killed PyTorch worker",
    "A job goes back to an old checkpoint, or ends",
    "All workers of a job end after ten minutes, although",
    "A job waits for ever after its first worker has",
    "A job ends when one of its workers is gone for",
    "Some iterations have another learning rate than",
    "A job stands still for good: one worker has reported",
    'A worker that is back ends with "iteration 10',
    "`Session.close()` takes 37 s.",
    "The state of a running job grows without end on",
    "`learned` leaves a job 1.6 times too slow for",
    "Pushing over four shards takes as long as over",
    "A job's pulls wait for seconds for another job's",
    "A job stands still for two minutes, and then a",
    "A second worker takes the name of one that lives,",
    'A worker ends with "report of iteration 561, but',
    "A worker that lives counts as silent while a shard",
    "A worker that freezes right after it has joined,",
    "After a job went back twice, checkpoints of what",
    "A service keeps no deadline any more.",
    "A job of many workers cannot be resumed, nor one",
    "A job that was resumed from a checkpoint forgets",
)
