"""A job on a Ray cluster from Python, in the names and shapes of Ray Train."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idl.errors import EvenpaceError
from scheduler.ray.submission import STORAGE, Scale, Submission, name_now
from scheduler.ray.training import LOOP_FILE, SCRIPT, SCRIPT_FILE, Checkpoint


class TrainingFailedError(EvenpaceError):
    """A job failed; the message has the end of the log of the process that did."""


@dataclass(frozen=True)
class ScalingConfig:
    """The workers of a job, and how their gradients meet.

    Attributes:
        num_workers: Their number; with two numbers, the job starts with the first, and uses up to the second
            as nodes come.
        use_gpu: Whether each takes a GPU, unless `resources_per_worker` says how many.
        resources_per_worker: Resources that Ray sets aside for each, such as "CPU" (1 by default) and "GPU".
        shards: Shards of the parameter server; 0 where the workers reduce gradients among themselves.
        fixed_group: Whether these are then a group that the function makes, by torchrun's variables. It keeps
            its size, and a loss starts all workers again.
    """

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)
    shards: int = 1
    fixed_group: bool = False


@dataclass(frozen=True)
class FailureConfig:
    """What a job does about failures.

    Attributes:
        max_failures: Workers that may fail, and are started again, before the job fails; the loss of a node
            does not count.
    """

    max_failures: int = Submission.max_failures


@dataclass(frozen=True)
class RunConfig:
    """The run of a job.

    Attributes:
        name: The job's name, unique in the cluster; None for the training function's, and the time.
        storage_path: The folder in which the job's own folder is made, on a disk that all nodes share.
        failure_config: What it does about failures.
        resume: Whether to go on with the job of this name that did not finish.
    """

    name: str | None = None
    storage_path: str | Path = STORAGE
    failure_config: FailureConfig = field(default_factory=FailureConfig)
    resume: bool = False


@dataclass(frozen=True)
class Result:
    """The end of a job.

    Attributes:
        metrics: The metrics that were reported last; None if there were none.
        checkpoint: The checkpoint that was reported last; None if there was none.
        path: The job's folder.
        reports: All reported metrics, oldest first; "worker" is the worker's name, "time" when it reported,
            in seconds since 1970.
    """

    metrics: Mapping[str, Any] | None
    checkpoint: Checkpoint | None
    path: Path
    reports: Sequence[Mapping[str, Any]]


class Trainer:
    """A job that calls a training function on each worker, with evenpace's session around it.

    The function uses `evenpace.torch`, `evenpace.keras` or `evenpace.jax` as a training script does, and
    `evenpace.ray.report` for metrics and checkpoints.

    Args:
        train_loop_per_worker: The training function, which takes `train_loop_config` or nothing. What it
            imports must be installed on all nodes.
        train_loop_config: Its argument.
        scaling_config: The workers.
        run_config: The run.
        manager_options, shard_options, worker_options: More options of `evenpace manager`, `ps` and `worker`,
            such as `("--policy", "learned")`.

    Raises:
        ValueError: A value is not allowed.
    """

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        manager_options: Sequence[str] = (),
        shard_options: Sequence[str] = (),
        worker_options: Sequence[str] = (),
    ) -> None:
        from ray import cloudpickle

        scaling, run = scaling_config or ScalingConfig(), run_config or RunConfig()
        wanted = dict(scaling.resources_per_worker)
        workers = (
            scaling.num_workers if isinstance(scaling.num_workers, tuple) else (scaling.num_workers,) * 2
        )
        name = getattr(train_loop_per_worker, "__name__", "job").strip("<>_")
        self._submission = Submission(
            Path(SCRIPT_FILE),
            name=run.name or name_now(name),
            workers=Scale(*workers),
            cpus_per_worker=wanted.pop("CPU", 1.0),
            gpus_per_worker=wanted.pop("GPU", float(scaling.use_gpu)),
            resources_per_worker=wanted,
            shards=scaling.shards,
            fixed_group=scaling.fixed_group,
            storage=Path(run.storage_path).expanduser().absolute(),
            resume=run.resume,
            max_failures=run.failure_config.max_failures,
            manager_options=tuple(manager_options),
            shard_options=tuple(shard_options),
            worker_options=tuple(worker_options),
            files={
                SCRIPT_FILE: SCRIPT.encode(),
                LOOP_FILE: cloudpickle.dumps(  # type: ignore[no-untyped-call]
                    (train_loop_per_worker, train_loop_config)
                ),
            },
        )

    def fit(self) -> Result:
        """Train until the job ends, showing its log.

        The job runs on the Ray cluster that this process is connected to, or else on one that is started on
        this machine for it. An interruption (Ctrl-C) ends the job.

        Raises:
            TrainingFailedError: The job failed.
            InvalidRequestError: There is a job of this name.
        """
        import ray

        from evenpace.cli.job_lines import JobLines
        from scheduler.ray import cluster
        from scheduler.ray.following import end, follow

        with contextlib.ExitStack() as stack:
            if not ray.is_initialized():
                stack.enter_context(cluster.connection(None, cpus=self._submission.cpus))
            job = cluster.submit(self._submission)
            lines = stack.enter_context(JobLines())
            try:
                finish = follow(job, lines)
            except BaseException:
                end(job, lines)
                raise
            reports = job.reports()
            job.goodbye()
        if finish.state != "done":
            raise TrainingFailedError(f"job {job.name!r} {finish.state}: {finish.reason}")
        return _result(self._submission.folder, reports)


def _result(folder: Path, reports: Sequence[Mapping[str, Any]]) -> Result:
    kept = [report["checkpoint"] for report in reports if report["checkpoint"] is not None]
    metrics = [{**one["metrics"], "worker": one["worker"], "time": one["time"]} for one in reports]
    return Result(
        reports[-1]["metrics"] if reports else None,
        Checkpoint(Path(kept[-1])) if kept else None,
        folder,
        metrics,
    )
