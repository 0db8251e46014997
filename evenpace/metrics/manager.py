"""The manager's metrics: of its jobs, their workers, the policies, and the state on disk.

All is read in the thread that serves the scrape, while the event loop goes on: single numbers, and for the
workers the last iteration's record, which does not change any more.
"""

import math
import time
from collections import Counter
from functools import partial

import numpy as np

from batchsize_manager.managed_job import ManagedJob
from batchsize_manager.service import ManagerService
from evenpace.metrics.catalogue import SPREAD, Families
from evenpace.metrics.server import PartCollector, service_collector
from evenpace.overview.transfers import transfers
from idl.measures import goodput, prediction_error, waiting_share
from idl.noise import Noise, statistical_efficiency
from idl.records import COLUMNS, IterationRecord
from rpc.server import Server

_STATES = ("gathering", "running", "paused", "recovering", "failed")


def manager_collector(service: ManagerService, server: Server, most_workers: int) -> PartCollector:
    """Return a collector of a manager's metrics.

    Args:
        most_workers: The most workers of a job for which there are metrics of each worker.
    """
    return service_collector("manager", server, partial(_fill, service, most_workers))


def _fill(service: ManagerService, most_workers: int, families: Families) -> None:
    jobs = service.jobs
    states = Counter(managed.job.state for managed in jobs)
    for state in sorted({*_STATES, *states}):
        families.set("jobs", states[state], state)
    families.set("jobs_ended", service.ended - service.failed, "ended")
    families.set("jobs_ended", service.failed, "failed")
    for managed in jobs:
        _job(families, managed)
        record = managed.job.iterations.history.last
        noise = managed.job.iterations.history.noise.noise
        if record is not None:
            last_iteration(families, managed.name, record, most_workers)
            progress(families, managed.name, record, noise, managed.job.spec.total_batch_size)
        gradient_noise(families, managed.name, noise)
    learning = service.learning
    families.fill("policy_seconds", learning.splits, "split")
    families.fill("policy_seconds", learning.observations, "observe")
    families.fill("fit_seconds", learning.fits)
    families.set("fits_failed", learning.failed_fits)
    if (writer := service.state_writer) is not None:
        families.set("state_pending_records", writer.pending)
        families.set("state_lag_seconds", writer.lag)
        families.set("state_behind", writer.is_behind)
        families.set("state_left_out", writer.left_out)
        families.fill("state_write_seconds", writer.writes)


def _job(families: Families, managed: ManagedJob) -> None:
    name, job, tally = managed.name, managed.job, managed.job.outbox.tally
    mode = managed.job.config.synchronisation.mode
    families.set("job_info", 1, name, managed.run, managed.policy, managed.predictor, mode)
    families.set("job_state", 1, name, job.state)
    families.set("job_members", len(job.members), name)
    families.set("job_expected_members", job.members.wanted, name)
    families.set("job_waiting_members", len(managed.waiting), name)
    families.set("job_iteration", job.iterations.first_open, name)
    families.set("job_micro_batch_samples", job.spec.micro_batch or 0, name)
    families.set("job_idle_seconds", time.monotonic() - max(managed.since, job.iterations.completed_at), name)
    families.fill("job_iteration_seconds", tally.durations, name)
    families.set("job_samples", tally.samples, name)
    families.set("job_processing_seconds", tally.processing, name)
    families.set("job_waiting_seconds", tally.waiting, name)
    families.set("job_rewinds", job.attempts.number, name)
    families.fill("job_group_change_seconds", tally.group_changes, name)
    families.set("job_pieces", tally.pieces, name)
    families.set("job_members_left", tally.left, name)
    families.set("job_members_removed", tally.gone - tally.left, name)
    families.set("job_members_suspended", tally.suspended, name)


def gradient_noise(families: Families, job: str, noise: Noise) -> None:
    """Set the figures of a job's gradient noise as far as they are known."""
    if math.isfinite(noise.sqr_error) and math.isfinite(noise.var_error):
        families.set("job_gradient_squared_norm", noise.sqr, job)
        families.set("job_gradient_variance", noise.var, job)
    if noise.known_scale is not None:
        families.set("job_noise_scale_samples", noise.known_scale, job)


def progress(families: Families, job: str, record: IterationRecord, noise: Noise, first_size: int) -> None:
    """Set the efficiency and the goodput of a job's last complete iteration where the noise scale is known.

    Args:
        families: The metrics.
        record: The iteration.
        first_size: Samples of the script's batches, whose efficiency is 1.
    """
    if noise.known_scale is None:
        return
    efficiency = float(statistical_efficiency(noise.known_scale, record.total, first_size))
    families.set("job_statistical_efficiency_ratio", efficiency, job)
    good = float(goodput(record.total, record.duration, efficiency))
    if math.isfinite(good):
        families.set("job_goodput_samples_per_second", good, job)


def last_iteration(families: Families, job: str, record: IterationRecord, most_workers: int) -> None:
    """Set the figures of a job's last complete iteration; see `manager_collector`."""
    families.set("job_epoch", record.epoch, job)
    families.set("job_batch_samples", record.total, job)
    families.set("job_last_iteration_seconds", record.duration, job)
    shown, predicted = record.speeds, record.predicted_speeds
    waiting, processing = record.waiting_times, record.batch_processing_times
    waited = float(np.nan_to_num(waiting_share(waiting.sum(), processing.sum())))
    families.set("job_waiting_ratio", waited, job)
    error = float(prediction_error(predicted, shown))
    if np.isfinite(error):
        families.set("job_prediction_error_ratio", error, job)
    figures = {column.measured.metric: record.column(column.name) for column in COLUMNS}
    figures["samples_per_second"] = shown
    its = transfers(record.column)
    figures["hidden_transfers_ratio"] = its.hidden_share
    figures["communication_bound"] = its.communication_bound
    for name, values in figures.items():
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        spread = (float(known.min()), float(np.median(known)), float(known.max()))
        for of, value in zip(SPREAD, spread, strict=True):
            families.set(f"workers_{name}", value, job, of)
        if len(record.workers) <= most_workers:
            for worker, number in zip(record.workers, values.tolist(), strict=True):
                if number == number:  # not NaN
                    families.set(f"worker_{name}", number, job, worker)
