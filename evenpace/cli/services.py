"""The parts of a cluster: manager, parameter server, worker."""

from pathlib import Path
from typing import Any

import click

from batchsize_manager.job.config import JobConfig
from batchsize_manager.policies import POLICIES
from batchsize_manager.policies.leader_straggler import STEP_SIZE
from batchsize_manager.storage.state_writer import Retention
from evenpace.cli.dashboard import http_names
from evenpace.cli.logs import always_log
from evenpace.cli.observing import observed, observed_manager
from evenpace.cli.options import (
    announce,
    as_client,
    as_server,
    example,
    hidden_parent,
    learning,
    limit_kind,
    start_part,
    tolerance,
    user_mistakes,
)
from evenpace.observing import Observing
from idl.synchronisation import MODES, Synchronisation
from predictors import PREDICTORS, PredictorOptions
from rpc.credentials import Credentials
from rpc.limits import ServerLimits
from rpc.server import Security

_STALENESS = 5  # LB-BSP, sections 5.1 and 5.3


@click.command()
@example("evenpace manager --listen 0.0.0.0:4300 --tls secrets/manager --token-key tokens.key --workers 4")
@click.option("--listen", default="127.0.0.1:4300", show_default=True, metavar="HOST:PORT")
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="A job starts with so many."
)
@click.option("--policy", type=click.Choice(list(POLICIES)), default="proportional", show_default=True)
@click.option("--predictor", type=click.Choice(list(PREDICTORS)), default="ema", show_default=True)
@tolerance
@click.option(
    "--step-size",
    type=click.IntRange(1),
    default=STEP_SIZE,
    show_default=True,
    help="Samples that the policy leader_straggler moves at a time, until it has come past the equilibrium.",
)
@click.option(
    "--report-timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds that others wait for a worker before it is taken out.",
)
@click.option(
    "--sync",
    type=click.Choice(MODES),
    default="bsp",
    show_default=True,
    help="How workers wait for each other: all of them in each iteration (bsp), within a bound (ssp), "
    "never (asp), or for those that are first (backup).",
)
@click.option(
    "--staleness",
    type=click.IntRange(0),
    default=None,
    help=f"With ssp: iterations that the fastest may be ahead of the slowest.  [default: {_STALENESS}]",
)
@click.option(
    "--replicas-to-aggregate",
    type=click.IntRange(1),
    default=None,
    help="With backup: gradients that make a step; the other workers are the backup.",
)
@click.option(
    "--lookahead",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Iterations planned ahead of the reports, for GPUs: workers need not wait for their batch sizes.",
)
@click.option(
    "--release",
    is_flag=True,
    help="Take workers out without which the job is faster, instead of only saying so.",
)
@learning()
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Keep what predictors have learnt in this folder, a file for each job.",
)
@click.option(
    "--reuse",
    type=click.Path(path_type=Path, exists=True),
    default=None,
    help="Start predictors from models that were kept: a file, or a folder of them.",
)
@click.option(
    "--max-jobs", type=click.IntRange(1), default=100, show_default=True, help="More at once are refused."
)
@click.option(
    "--max-members",
    type=click.IntRange(1),
    default=5000,
    show_default=True,
    help="Workers of one job; more are refused.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Remember jobs in this folder: a manager that is started again with it goes on with them.",
)
@click.option(
    "--keep-runs",
    type=click.IntRange(0),
    default=Retention.runs,
    show_default=True,
    help="With --state: jobs that have ended and are still remembered, at most.",
)
@click.option(
    "--keep-days",
    type=click.FloatRange(0),
    default=None,
    help="With --state: for so long after their end, at most.  [default: no limit]",
)
@click.option(
    "--keep-mib",
    type=click.IntRange(0),
    default=Retention.nbytes // 2**20,
    show_default=True,
    help="With --state: MiB of each job's history, of which the oldest iterations are forgotten; 0 for all. "
    "An iteration takes about 53 bytes for each worker.",
)
@click.option(
    "--keep-job",
    type=click.FloatRange(0),
    default=JobConfig.keep,
    show_default=True,
    help="Seconds that a job waits for other workers where those that are left cannot go on.",
)
@click.option(
    "--heartbeat",
    type=click.FloatRange(0),
    default=JobConfig.heartbeat,
    show_default=True,
    help="Seconds between a worker's signs of life; 0 for none.",
)
@click.option(
    "--silence",
    type=click.FloatRange(0, min_open=True),
    default=JobConfig.silence,
    show_default=True,
    help="Seconds without one, after which others do a worker's part. It is welcome when it is back.",
)
@click.option(
    "--absence",
    type=click.FloatRange(0),
    default=JobConfig.absence,
    show_default=True,
    help="Seconds without one, after which such a worker is taken out.",
)
@click.option(
    "--scale-batch",
    is_flag=True,
    help="Let the batch follow the number of workers: the size that scripts give is that of --workers.",
)
@observed_manager
@click.option(
    "--http",
    default=None,
    metavar="HOST:PORT",
    help="Serve a live page about the jobs there, in a process of its own; see `evenpace dashboard`.",
)
@http_names
@as_server
@hidden_parent
def manager(
    listen: str,
    workers: int,
    policy: str,
    predictor: str,
    tolerance: float,
    step_size: int,
    report_timeout: float,
    sync: str,
    staleness: int | None,
    replicas_to_aggregate: int | None,
    lookahead: int,
    release: bool,
    first_fit: int,
    refit_every: int,
    models: Path | None,
    reuse: Path | None,
    max_jobs: int,
    max_members: int,
    state: Path | None,
    keep_runs: int,
    keep_days: float | None,
    keep_mib: int,
    keep_job: float,
    heartbeat: float,
    silence: float,
    absence: float,
    scale_batch: bool,
    observing: Observing,
    http: str | None,
    http_names: tuple[str, ...],
    security: Security,
    limits: ServerLimits,
    parent: int | None,
) -> None:
    """Run the BatchSizeManager, which tells every worker its batch size."""
    start_part(parent)
    from batchsize_manager.learning.saved_models import load_models
    from batchsize_manager.policies import PolicyOptions
    from batchsize_manager.service import ManagerConfig, ManagerService
    from evenpace.serve import serve
    from rpc.address import Address

    address = Address.parse(listen)
    security.check_address(address)
    observing.check(security)
    if sync == "ssp" and staleness is None:
        staleness = _STALENESS
    with user_mistakes():
        synchronisation = Synchronisation(sync, staleness, replicas_to_aggregate)
        job = JobConfig(
            workers=workers,
            lookahead=lookahead,
            report_timeout=report_timeout,
            synchronisation=synchronisation,
            release=release,
            keep=keep_job,
            heartbeat=heartbeat,
            silence=silence,
            absence=absence,
            scale_batch=scale_batch,
        )
        learning = PredictorOptions(first_fit=first_fit, refit_every=refit_every)
        options = PolicyOptions(
            predictor, tolerance, learning, load_models(reuse) if reuse else {}, step_size
        )
        kept = Retention(keep_runs, keep_days, keep_mib * 2**20)
        config = ManagerConfig(policy, options, job, models, max_jobs, max_members, state, kept)
        page = None
        if http is not None:
            from evenpace.dashboard.page_process import PageProcess

            page = PageProcess(Address.parse(http), http_names, security)
        service = ManagerService(config)

    def listening(where: Address) -> None:
        announce(where)
        if page is not None:
            page.start(where)

    try:
        serve(service, address, limits, security, listening, observing.manager(service))
    finally:
        if page is not None:
            page.stop()


@click.command()
@example("evenpace ps --listen 0.0.0.0:4400 --tls secrets/ps --token-key tokens.key")
@click.option("--listen", default="127.0.0.1:4400", show_default=True, metavar="HOST:PORT")
@click.option(
    "--deterministic",
    is_flag=True,
    help="Sum gradients in a fixed order: runs with the same splits are the same to the last bit.",
)
@click.option(
    "--memory-mib", type=click.IntRange(1), default=4096, show_default=True, help="Of parameters, at most."
)
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="For the optimiser's steps."
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Keep checkpoints in this folder, and go on from them: jobs that run with bsp outlive the shard. "
    "Each shard needs a folder of its own.",
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Iterations from one checkpoint to the next.",
)
@click.option(
    "--keep",
    type=click.FloatRange(0, min_open=True),
    default=86_400.0,
    show_default=True,
    help="Seconds after which a job is removed from the folder that nobody is connected for.",
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="With --state: write down every step of each job in this folder.",
)
@observed
@as_server
@hidden_parent
def ps(
    listen: str,
    deterministic: bool,
    memory_mib: int,
    threads: int,
    state: Path | None,
    checkpoint_every: int,
    keep: float,
    ledger: Path | None,
    observing: Observing,
    security: Security,
    limits: ServerLimits,
    parent: int | None,
) -> None:
    """Run one shard of the parameter server, which sums gradients and steps the optimiser."""
    start_part(parent)
    from rpc.address import Address

    address = Address.parse(listen)
    security.check_address(address)  # before PyTorch is imported, which takes seconds
    observing.check(security)
    import torch

    from evenpace.serve import serve
    from ps import optimizers
    from ps.jobs import ParameterServerConfig
    from ps.service import ParameterServerService

    torch.set_num_threads(threads)
    with user_mistakes():
        config = ParameterServerConfig(
            deterministic, memory_mib * 2**20, state, checkpoint_every, keep, ledger
        )
        service = ParameterServerService(config)
    optimizers.prepare()  # it would hold up everybody at the first job's opening
    serve(service, address, limits, security, announce, observing.shard(service))


@click.command(context_settings={"allow_interspersed_args": False})
@example("evenpace worker --manager 10.0.0.1:4300 --ps 10.0.0.1:4400 train.py --epochs 10")
@click.option("--manager", required=True, metavar="HOST:PORT", help="The BatchSizeManager.")
@click.option(
    "--ps",
    "shards",
    multiple=True,
    metavar="HOST:PORT",
    help="A shard of the parameter server; may be repeated. Left out: the script reduces gradients itself.",
)
@click.option("--job", default="default", show_default=True, help="The job's name.")
@click.option(
    "--name", default=None, help="This worker's name, unique in the job.  [default: rank-RANK or HOST-PID]"
)
@click.option("--min-batch-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--max-batch-size", type=click.IntRange(1), default=None)
@click.option(
    "--granularity", type=click.IntRange(1), default=1, show_default=True, help="Batch sizes are multiples."
)
@click.option(
    "--device",
    default=None,
    help="Of which kind it is, in words; whoever joins starts as others of its kind do.  "
    "[default: the GPU's name, or the CPU's and its cores]",
)
@click.option(
    "--cpu-share", type=click.FloatRange(0, min_open=True), default=None, help="Use so many cores at most."
)
@limit_kind
@click.option("--cpu", type=click.IntRange(0), default=None, help="Stay on this CPU.")
@click.option("--limit-name", default=None, hidden=True)
@observed
@click.option("--insecure", is_flag=True, help="Let other machines read --metrics without TLS.")
@as_client
@hidden_parent
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(
    manager: str,
    shards: tuple[str, ...],
    job: str,
    name: str | None,
    min_batch_size: int,
    max_batch_size: int | None,
    granularity: int,
    device: str | None,
    cpu_share: float | None,
    cpu: int | None,
    limit_kind: Any,
    limit_name: str | None,
    observing: Observing,
    insecure: bool,
    credentials: Credentials | None,
    parent: int | None,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run a training script as one worker of a job.

    SCRIPT is run as `python SCRIPT ARGUMENTS` would run it, with a session in which evenpace's loader and
    optimiser find the manager and the parameter server.
    """
    start_part(parent)
    from evenpace.context import connect
    from evenpace.launch import check_script, limit_when_ready, pin, run_script
    from worker.resources.device import cpu_kind

    with user_mistakes():
        check_script(script)
        session = connect(
            manager,
            shards,
            job=job,
            worker=name,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            granularity=granularity,
            device=device or (cpu_kind(cpu_share) if cpu_share is not None else None),
            credentials=credentials,
            metrics=str(observing.metrics) if observing.metrics else None,
            traces=observing.traces,
            trace_every=observing.trace_every,
            insecure=insecure,
        )
        always_log(session.log_fields)
        if cpu is not None:
            pin(cpu)
        if cpu_share is not None:
            limit_when_ready(session, cpu_share, limit_name or session.config.worker, limit_kind)
    run_script(script, arguments)
