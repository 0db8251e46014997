"""The structured fields of log lines about a shard's job."""


def log_fields(name: str, **more: object) -> dict[str, object]:
    """Return the fields of log lines about a job.

    Args:
        name: The job's name at the shards, which holds its run: JOB/RUN.
        more: Further fields.
    """
    job, slash, run = name.rpartition("/")
    return {"job": job, "run": run, **more} if slash else {"job": name, **more}
