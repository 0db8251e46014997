"""The state that a manager keeps on disk: jobs, their records, and what restores them after a restart."""
