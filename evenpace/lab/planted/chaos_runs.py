"""The findings of `evenpace chaos`."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Planted

PLANTED: tuple[Planted, ...] = ()

UNPLANTED: Mapping[str, str] = {}

NOT_YET = (
    'A worker ends with "no call came within 10 s of',
    'A worker ends with "is not a member ... died:',
    "A worker that was killed and started again ends",
    "A shard that starts with a wrong time, or after",
    'A worker ends with "rewind to version 10: there',
    'A worker ends with "batch_processing_time 0.0',
    "The history of a long job lacks iterations while",
    "A worker that was limited by stopping and continuing",
    "A manager that was killed is not started again",
    "With `--lookahead`, a job stands still for two",
    "A worker whose network was gone for some seconds",
    "Chaos itself: the ledger has a gap after the disk",
    "Chaos itself: under libfaketime 0.9.10, `time.sleep`",
)
