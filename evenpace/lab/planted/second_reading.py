"""The findings of a second close reading, with small experiments."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED: tuple[Planted, ...] = (
    Planted(
        "Where their parts are equally large, shards",
        (
            Change(
                "ps/shard_job.py",
                "if self.part and part and self.part != part:",
                "if False and self.part and part and self.part != part:",
            ),
        ),
        "tests/worker/test_shards_named.py -k 'order or twice'",
        hangs=True,
    ),
    Planted(
        "Two workers, each with a single shard of its own,",
        (
            Change(
                "batchsize_manager/job/attempts.py",
                "if report.shards is None:\n            return False",
                "return False",
            ),
        ),
        "tests/batchsize_manager/job/test_shards.py",
    ),
    Planted(
        'After "can\'t start new thread", a shard never',
        (Change("ps/checkpoint_store.py", "        executor.submit(lambda: None)\n", "        pass\n"),),
        "tests/ps/test_ps_checkpoints.py -k whose_thread",
    ),
    Planted(
        "A `StreamLoader` ends with `KeyError` after",
        (
            Change(
                "worker/data/sample_stream.py",
                "        self.keep(last - first + 1)\n",
                "        self._recent_samples = self._recent_samples or last - first + 1\n",
            ),
        ),
        "tests/worker/data/test_sample_stream.py -k 'grows or any_slice'",
    ),
    Planted(
        "A worker whose machine was suspended while it",
        (Change("worker/shard_clients.py", "return min(max(held), took)", "return max(held)"),),
        "tests/worker/test_stopwatch.py -k suspended",
    ),
)

UNPLANTED: Mapping[str, str] = {}

NOT_YET = (
    "A flipped bit in a live shard's newest checkpoint,",
    "\"The parameter server's shards have no version",
    "A job ends with its checkpoints intact after too",
    "A test in which `evenpace chaos` is interrupted",
    "`evenpace chaos --faults disk,clock` without libfaketime,",
    "The test of a competitor's share fails now and",
    'A worker ends with "attempt 2: the job is in attempt',
    "A worker whose connection breaks while its token's",
    "Samples are in two iterations, or in none, without",
    "A worker that joined while the manager's disk",
    "A script ends at once and has trained nothing:",
    "A script with two optimisers trains neither model:",
    "With two models balanced by one loader, in micro-batches,",
    "A complex parameter loses its imaginary part,",
    '`nn.Embedding(sparse=True)` ends with "copy_()',
    "Samples are never trained on, and a gradient counts",
    "Parameters that a script unfreezes or adds after",
    "A Keras model that is compiled again after `distribute`",
)
