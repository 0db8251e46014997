"""The metrics of a parameter server's shard, job by job."""

import time
from functools import partial

from evenpace.metrics.catalogue import Families
from evenpace.metrics.server import PartCollector, service_collector
from ps.service import ParameterServerService
from ps.shard_job import ShardJob
from rpc.server import Server

_JOBS = 200  # jobs with metrics of their own; those with connected workers come first


def shard_collector(service: ParameterServerService, server: Server) -> PartCollector:
    """Return a collector of the metrics of one process of the parameter server."""
    return service_collector("ps", server, partial(_fill, service))


def _fill(service: ParameterServerService, families: Families) -> None:
    jobs = service.jobs
    families.set("shard_jobs", len(jobs))
    for shard_job in sorted(jobs, key=lambda shard_job: shard_job.left_at is not None)[:_JOBS]:
        _job(families, shard_job)


def _job(families: Families, shard_job: ShardJob) -> None:
    job, _, run = shard_job.name.partition("/")
    tally = shard_job.tally
    for name, value in (
        ("version", shard_job.shard.version),
        ("attempt", shard_job.attempt),
        ("parameter_bytes", shard_job.shard.layout.nbytes),
        ("connections", len(shard_job.peers)),
        ("waiting_pulls", len(shard_job.waiting)),
        ("pushes", tally.pushes + tally.duplicates),
        ("duplicates", tally.duplicates),
        ("pushed_bytes", tally.pushed),
        ("pulls", tally.pulls),
        ("pulled_bytes", tally.pulled),
        ("aggregation_seconds", tally.aggregation),
    ):
        families.set(f"shard_{name}", value, job, run)
    families.fill("shard_step_seconds", tally.steps, job, run)
    if (store := shard_job.store) is not None:
        families.set("shard_checkpoints", store.written, job, run)
        families.set("shard_checkpoints_failed", store.failed, job, run)
        families.set("shard_checkpoint_seconds", store.writing, job, run)
        families.set("shard_checkpoint_bytes", store.written_bytes, job, run)
        if (at := store.written_at) is not None:
            families.set("shard_checkpoint_age_seconds", time.monotonic() - at, job, run)
