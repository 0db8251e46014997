"""Files by which a service's folder says whose it is, so that services of two kinds do not share one.

The service that has the folder holds a lock on its file for as long as it runs; the file stays.
"""

MANAGER_LOCK = "manager.lock"
"""In the folder of a manager's state."""

SHARD_LOCK = "lock"
"""In the folder of a shard's checkpoints."""
