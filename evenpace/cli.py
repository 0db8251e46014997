"""The command line. It reads options, and leaves the work to the modules that it names."""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

import evenpace
from batchsize_manager.policies import POLICIES
from predictors import PREDICTORS
from rpc.errors import EvenpaceError

F = TypeVar("F", bound=Callable[..., Any])


class _Group(click.Group):
    """Turns our own errors into one clear line and status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except EvenpaceError as error:
            if ctx.params.get("debug"):
                raise
            raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def _user_mistakes() -> Iterator[None]:
    """Report what the user got wrong in one line, too; not for where a user's own code runs."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        raise EvenpaceError(str(error)) from error


def _example(text: str) -> Callable[[F], F]:
    """Put an example at the end of a command's help."""

    def add(function: F) -> F:
        function.__doc__ = f"{function.__doc__}\n\n\b\nExample:\n  {text}\n"
        return function

    return add


def _hidden_parent(function: F) -> F:
    return click.option("--parent", type=int, hidden=True, help="End when this process ends.")(function)


def _tolerance(function: F) -> F:
    return click.option(
        "--tolerance",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.02,
        show_default=True,
        help="Keep batch sizes while they are predicted to be this close to the best.",
    )(function)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(evenpace.__version__, package_name="evenpace")
@click.option("--debug", is_flag=True, help="Log everything, and show where errors come from.")
def cli(debug: bool) -> None:
    """Keep every worker of a distributed training job at an even pace.

    Start with `evenpace demo`. A cluster of your own is one `manager`, one or more `ps`, and a `worker`
    on each machine.
    """
    # SIGTERM must do as Ctrl-C does: stop what was started, then end.
    # Both are set: a process that a shell started in the background ignores SIGINT.
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _start_part(parent: int | None) -> None:
    if parent is not None:
        from evenpace.serve import end_with_parent

        end_with_parent(parent)


@cli.command()
@_example("evenpace manager --listen 0.0.0.0:4300 --workers 4 --policy proportional --predictor ema")
@click.option("--listen", default="127.0.0.1:4300", show_default=True, metavar="HOST:PORT")
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="A job starts with so many."
)
@click.option("--policy", type=click.Choice(list(POLICIES)), default="proportional", show_default=True)
@click.option("--predictor", type=click.Choice(list(PREDICTORS)), default="ema", show_default=True)
@_tolerance
@click.option(
    "--report-timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds that others wait for a worker before it is taken out.",
)
@_hidden_parent
def manager(
    listen: str,
    workers: int,
    policy: str,
    predictor: str,
    tolerance: float,
    report_timeout: float,
    parent: int | None,
) -> None:
    """Run the BatchSizeManager, which tells every worker its batch size."""
    _start_part(parent)
    from batchsize_manager.job import JobConfig
    from batchsize_manager.policies import PolicyOptions
    from batchsize_manager.service import ManagerConfig, ManagerService
    from evenpace.serve import serve
    from rpc.address import Address
    from rpc.peer import ServerLimits

    job = JobConfig(workers=workers, report_timeout=report_timeout)
    service = ManagerService(ManagerConfig(policy, PolicyOptions(predictor, tolerance), job))
    serve(service, Address.parse(listen), ServerLimits(), _announce)


@cli.command()
@_example("evenpace ps --listen 0.0.0.0:4400")
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
@_hidden_parent
def ps(listen: str, deterministic: bool, memory_mib: int, threads: int, parent: int | None) -> None:
    """Run one shard of the parameter server, which sums gradients and steps the optimiser."""
    _start_part(parent)
    import torch

    from evenpace.serve import serve
    from ps.service import ParameterServerConfig, ParameterServerService
    from rpc.address import Address
    from rpc.peer import ServerLimits

    torch.set_num_threads(threads)
    service = ParameterServerService(ParameterServerConfig(deterministic, memory_mib * 2**20))
    serve(service, Address.parse(listen), ServerLimits(), _announce)


@cli.command(context_settings={"allow_interspersed_args": False})
@_example("evenpace worker --manager 10.0.0.1:4300 --ps 10.0.0.1:4400 train.py --epochs 10")
@click.option("--manager", required=True, metavar="HOST:PORT", help="The BatchSizeManager.")
@click.option(
    "--ps", "shards", required=True, multiple=True, metavar="HOST:PORT", help="A shard; may be repeated."
)
@click.option("--job", default="default", show_default=True, help="The job's name.")
@click.option("--name", default=None, help="This worker's name, unique in the job.  [default: HOST-PID]")
@click.option("--min-batch-size", type=click.IntRange(1), default=1, show_default=True)
@click.option("--max-batch-size", type=click.IntRange(1), default=None)
@click.option(
    "--granularity", type=click.IntRange(1), default=1, show_default=True, help="Batch sizes are multiples."
)
@click.option(
    "--cpu-share", type=click.FloatRange(0, min_open=True), default=None, help="Use so many cores at most."
)
@click.option(
    "--limit-kind", type=click.Choice(("auto", "cgroup", "duty-cycle")), default="auto", show_default=True
)
@click.option("--cpu", type=click.IntRange(0), default=None, help="Stay on this CPU.")
@click.option("--limit-name", default=None, hidden=True)
@_hidden_parent
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
    cpu_share: float | None,
    cpu: int | None,
    limit_kind: Any,
    limit_name: str | None,
    parent: int | None,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run a training script as one worker of a job.

    SCRIPT is run as `python SCRIPT ARGUMENTS` would run it, with a session in which evenpace's loader and
    optimiser find the manager and the parameter server.
    """
    _start_part(parent)
    from evenpace.context import connect
    from evenpace.launch import check_script, limit_when_ready, pin, run_script

    with _user_mistakes():
        check_script(script)
        session = connect(
            manager,
            shards,
            job=job,
            worker=name,
            min_batch_size=min_batch_size,
            max_batch_size=max_batch_size,
            granularity=granularity,
        )
        if cpu is not None:
            pin(cpu)
        if cpu_share is not None:
            limit_when_ready(session, cpu_share, limit_name or session.config.worker, limit_kind)
    run_script(script, arguments)


@cli.command()
@_example("evenpace demo --shares 0.8,0.4,0.2,0.1 --json demo.json")
@click.option(
    "--shares",
    default="0.8,0.4,0.2,0.1",
    show_default=True,
    metavar="CORES,...",
    help="The CPU share of each worker.",
)
@click.option("--data", default="digits", show_default=True, metavar="digits|mnist:DIR|cifar10:DIR")
@click.option(
    "--epochs", type=click.IntRange(1), default=None, help="Passes over the data.  [default: by data set]"
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=None, help="Over all workers.  [default: by data set]"
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default="proportional",
    show_default=True,
    help="Of the balanced run.",
)
@click.option("--predictor", type=click.Choice(list(PREDICTORS)), default="ema", show_default=True)
@_tolerance
@click.option(
    "--ps-shards", type=click.IntRange(1), default=1, show_default=True, help="Parameter-server processes."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option(
    "--limit-kind", type=click.Choice(("auto", "cgroup", "duty-cycle")), default="auto", show_default=True
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder for report and logs.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the summary here."
)
def demo(
    shares: str,
    data: str,
    epochs: int | None,
    batch_size: int | None,
    policy: str,
    predictor: str,
    tolerance: float,
    ps_shards: int,
    seed: int,
    limit_kind: Any,
    out: Path,
    json_path: Path | None,
) -> None:
    """Train on uneven workers, first with an even split, then balanced, and compare."""
    from evenpace.demo.run import DemoConfig, run_demo

    with _user_mistakes():
        config = DemoConfig.from_options(
            shares=shares,
            data=data,
            epochs=epochs,
            total_batch_size=batch_size,
            policy=policy,
            predictor=predictor,
            tolerance=tolerance,
            shards=ps_shards,
            seed=seed,
            limit_kind=limit_kind,
            out=out,
        )
        run_demo(config, json_path)


@cli.group()
def bench() -> None:
    """Measure evenpace on this machine."""


@bench.command("rpc")
@_example("evenpace bench rpc --workers 1000 --rounds 100 --json rpc.json")
@click.option(
    "--workers", type=click.IntRange(1, 5000), default=1000, show_default=True, help="Each with a connection."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Barrier rounds, after a warm-up.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the figures here."
)
def bench_rpc(workers: int, rounds: int, json_path: Path | None) -> None:
    """Time barrier rounds of the manager, and of thriftpy2's threaded server doing the same."""
    from evenpace.bench.rpc import run

    run(workers, rounds, json_path)


@bench.command("ps")
@_example("evenpace bench ps --mib 100 --json ps.json")
@click.option(
    "--mib", type=click.IntRange(1, 1900), default=100, show_default=True, help="Size of the gradient."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=9, show_default=True, help="Medians are over these."
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the figures here."
)
def bench_ps(mib: int, repeats: int, json_path: Path | None) -> None:
    """Time push and pull of the parameter server, of bare sockets, and of thriftpy2's binary argument."""
    from evenpace.bench.ps import run

    run(mib, repeats, json_path)


def _announce(address: Any) -> None:
    from evenpace.cluster import LISTENING

    click.echo(f"{LISTENING}{address}")


def main() -> None:
    """Run the command line; the entry point."""
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        code = 130
    sys.stdout.flush()
    sys.exit(code or os.EX_OK)
