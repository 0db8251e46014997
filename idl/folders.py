"""Files by which packages know each other's folders.

A service holds a lock on the file by which its folder says whose it is, so that services of two kinds do not
share one, for as long as it runs; the file stays.
"""

MANAGER_LOCK = "manager.lock"
"""In the folder of a manager's state."""

SHARD_LOCK = "lock"
"""In the folder of a shard's checkpoints."""

KEPT_STATE = "kept.pt"
"""In a folder for the state of workers that all-reduce: what they have written down to be suspended."""

BEGUN_STATE = "begun.pt"
"""In the same folder: such a state with which they begin again."""
