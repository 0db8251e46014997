"""What lines of log about a shard's job say beside their message."""


def log_fields(name: str, **more: object) -> dict[str, object]:
    """The fields for a job.

    Args:
        name: As the shards know it: the job's own and its run, as in JOB/RUN.
        more: Further fields.
    """
    job, slash, run = name.rpartition("/")
    return {"job": job, "run": run, **more} if slash else {"job": name, **more}
