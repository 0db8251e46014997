"""Commands of a cluster's processes: manager, parameter server, worker."""

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from batchsize_manager.config import ManagerConfig
from evenpace.cli.logs import always_log
from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import MANAGER, announce, as_client, as_server, with_parent
from evenpace.cli.sections import ServiceCommand
from evenpace.cli.settings import ADDRESS, configured, option
from evenpace.dashboard.config import PageConfig
from evenpace.observing import Observing
from idl.errors import ReleasedError
from idl.synchronisation import STALENESS
from ps.config import ParameterServerConfig
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.limits import ServerLimits
from rpc.server import Security
from worker.config import SessionConfig
from worker.resources.cpu_limits import LimitKind

log = logging.getLogger(__name__)


def _paper_staleness(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give --sync ssp the paper's bound of staleness, unless one is given."""

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        if values["sync"] == "ssp" and values["staleness"] is None:
            values["staleness"] = STALENESS
        return function(**values)

    return command


@click.command(
    cls=ServiceCommand,
    common=(
        *("listen", "workers", "state", "policy", "sizer", "batch_size", "sync"),
        *("http", "metrics", "folder", "token_key", "insecure"),
    ),
)
@example("evenpace manager --listen 0.0.0.0:4300 --tls secrets/manager --token-key tokens.key --workers 4")
@click.option("--listen", type=ADDRESS, default=MANAGER, show_default=True, help="Where workers find it.")
@_paper_staleness
@configured(ManagerConfig, "config")
@click.option(
    "--reuse",
    type=click.Path(path_type=Path, exists=True),
    default=None,
    help="Start predictors from models that were kept: a file, or a folder of them.",
)
@click.option(
    "--profiles",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Start the policy `learned` from profiles of kinds of devices: a file of `evenpace profile`, or a "
    "folder of them; may be repeated.",
)
@configured(Observing, "observing")
@click.option(
    "--http",
    type=ADDRESS,
    default=None,
    help="Serve a live page about the jobs there, in a process of its own; see `evenpace dashboard`.",
)
@option(PageConfig, "names")
@as_server
@with_parent
def manager(
    listen: Address,
    config: ManagerConfig,
    reuse: Path | None,
    profiles: tuple[Path, ...],
    observing: Observing,
    http: Address | None,
    http_name: tuple[str, ...],
    security: Security,
    limits: ServerLimits,
) -> None:
    """Run the BatchSizeManager, which tells every worker its batch size."""
    from batchsize_manager.learning.profiles import read_profiles, with_profiles
    from batchsize_manager.learning.saved_models import load_models
    from batchsize_manager.service import ManagerService
    from evenpace.serve import serve

    security.check_address(listen)
    observing.check(security)
    with user_mistakes():
        models = load_models(reuse) if reuse is not None else {}
        if profiles:
            if config.policy not in ("learned", "overlap"):
                raise ValueError(
                    f"policy {config.policy!r}: with --profiles it must be 'learned' or 'overlap'"
                )
            models = with_profiles(models, read_profiles(profiles))
        config = replace(config, options=replace(config.options, models=models))
        page = None
        if http is not None:
            from evenpace.dashboard.config import check_http
            from evenpace.dashboard.page_process import PageProcess, page_options

            check_http(http, security.credentials, insecure=security.insecure)
            page = PageProcess(http, page_options(http_name, security))
        service = ManagerService(config)

    def listening(where: Address) -> None:
        announce(where)
        if page is not None:
            from evenpace.dashboard.identity import from_here

            page.start(str(from_here(where, security.credentials)))

    try:
        serve(service, listen, limits, security, listening, observing.manager(service))
    finally:
        if page is not None:
            page.stop()


@click.command(
    cls=ServiceCommand,
    common=("listen", "state", "threads", "memory_mib", "metrics", "folder", "token_key", "insecure"),
)
@example("evenpace ps --listen 0.0.0.0:4400 --tls secrets/ps --token-key tokens.key")
@click.option(
    "--listen", type=ADDRESS, default="127.0.0.1:4400", show_default=True, help="Where workers find it."
)
@configured(ParameterServerConfig, "config")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="For the optimiser's steps."
)
@configured(Observing, "observing", without=("metrics_workers",))
@as_server
@with_parent
def ps(
    listen: Address,
    config: ParameterServerConfig,
    threads: int,
    observing: Observing,
    security: Security,
    limits: ServerLimits,
) -> None:
    """Run one shard of the parameter server, which sums gradients and steps the optimiser."""
    security.check_address(listen)  # before PyTorch is imported, which takes seconds
    observing.check(security)
    import torch

    from evenpace.serve import serve
    from ps import optimizers
    from ps.service import ParameterServerService

    torch.set_num_threads(threads)
    with user_mistakes():
        service = ParameterServerService(config)
    optimizers.prepare()  # at the first job's opening it would hold up all callers
    serve(service, listen, limits, security, announce, observing.shard(service))


@click.command(
    cls=ServiceCommand,
    common=(
        *("manager", "ps", "job", "name", "min_batch_size", "max_batch_size", "device", "cpu_share"),
        *("metrics", "folder", "token_file"),
    ),
    context_settings={"allow_interspersed_args": False},
)
@example("evenpace worker --manager 10.0.0.1:4300 --ps 10.0.0.1:4400 train.py --epochs 10")
@configured(SessionConfig, "config", manager=MANAGER, maximum=None)
@click.option(
    "--cpu-share", type=click.FloatRange(0, min_open=True), default=None, help="Use so many cores at most."
)
@click.option(
    "--limit-kind",
    type=click.Choice(get_args(LimitKind)),
    default="auto",
    show_default=True,
    help="How --cpu-share is kept to: by a control group, by stopping and continuing the process, or by what "
    "works here.",
)
@click.option("--cpu", type=click.IntRange(0), default=None, help="Stay on this CPU.")
@click.option("--limit-name", default=None, hidden=True)
@configured(Observing, "observing", without=("metrics_workers",))
@click.option("--insecure", is_flag=True, help="Let other machines read --metrics without TLS.")
@as_client
@with_parent
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(
    config: SessionConfig,
    cpu_share: float | None,
    cpu: int | None,
    limit_kind: LimitKind,
    limit_name: str | None,
    observing: Observing,
    insecure: bool,
    credentials: Credentials | None,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run a training script as one worker of a job.

    SCRIPT is run as `python SCRIPT ARGUMENTS` would run it, with a session in which evenpace's loader and
    optimiser find the manager and the parameter server.
    """
    from evenpace.context import open_session
    from evenpace.launch import be_a_group_of_one, check_script, limit_when_ready, pin, run_script
    from worker.resources.device import cpu_kind

    with user_mistakes():
        check_script(script)
        device = config.device or (cpu_kind(cpu_share) if cpu_share is not None else None)
        config = replace(config, device=device, credentials=credentials)
        session = open_session(config, observing, insecure=insecure)
        always_log(session.log_fields)
        if cpu is not None:
            pin(cpu)
        if cpu_share is not None:
            limit_when_ready(session, cpu_share, limit_name or config.worker, limit_kind)
        if not config.shards:
            be_a_group_of_one()
    try:
        run_script(script, arguments)
    except ReleasedError as error:
        log.warning("%s; its script ends here", error)
    except BaseException as error:
        session.failed = not isinstance(error, SystemExit) or bool(error.code)
        raise
