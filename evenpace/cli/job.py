"""`evenpace job`: changes to a running job."""

import functools
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from batchsize_manager.balancing import Balancing
from batchsize_manager.policies import POLICIES
from batchsize_manager.sizers import SIZERS, Sizes, Sizing
from evenpace.cli.options import F, example, user_mistakes
from evenpace.cli.peers import MANAGER, RAY_ADDRESS, as_client, cluster_token
from evenpace.cli.settings import PLACES, option
from rpc.credentials import Credentials
from rpc.places import Where


def _asks_manager(function: Callable[..., str]) -> Callable[..., None]:
    """Make a command of a function that takes a `ManagerClient`, and returns the text to be printed."""

    @click.option(
        "--manager",
        type=PLACES,
        default=MANAGER,
        show_default=True,
        help="The BatchSizeManager that runs the job.",
    )
    @as_client
    @functools.wraps(function)
    def command(manager: Where, credentials: Credentials | None, **others: Any) -> None:
        click.echo(_ask(manager, credentials, lambda client: function(client, **others)))

    return command


def _ask(manager: Where, credentials: Credentials | None, change: Callable[[Any], str]) -> str:
    """Have a manager make a change by a `ManagerClient`; return what was done."""
    from batchsize_manager.client import ManagerClient

    with user_mistakes(), ManagerClient(manager, credentials) as client:
        return change(client)


@click.group()
def job() -> None:
    """Change a running job: how its batches are split, how large they are, and who takes part.

    A change holds from the first iteration on that nobody has been given yet, and no iteration is lost. With
    `evenpace manager --state` it outlives the manager.
    """


def _command(name: str, text: str) -> Callable[[F], Any]:
    def add(function: F) -> Any:
        return job.command(name)(example(text)(_asks_manager(function)))

    return add


@_command("policy", "evenpace job policy digits learned --tolerance 0.05")
@click.argument("name", metavar="JOB")
@click.argument("policy", type=click.Choice(tuple(POLICIES)), metavar="POLICY")
@option(
    Balancing,
    "predictor",
    None,
    "Of speeds, where the policy goes by one.  [default: the present one]",
)
@option(
    Balancing,
    "tolerance",
    None,
    "Keep batch sizes while predicted to be this close to the best.  [default: the present one]",
)
def _policy(client: Any, name: str, policy: str, predictor: str | None, tolerance: float | None) -> str:
    """Split batches by another policy from now on.

    It is one of even, proportional, leader_straggler, learned and overlap. It starts from what is known
    already of the workers' speeds.
    """
    said: str = client.set_policy(name, policy, predictor, tolerance)
    return said


@_command("sizer", "evenpace job sizer digits goodput --batch-size 64:4096")
@click.argument("name", metavar="JOB")
@click.argument("sizer", type=click.Choice(tuple(SIZERS)), metavar="SIZER")
@option(
    Sizing,
    "batch_size",
    None,
    "The least and the most samples of a whole batch.  [default: the present ones]",
)
@option(Sizing, "promise", None, "Share of goodput to be sure of, for a change.  [default: the present one]")
@option(Sizing, "similarity", None, "Threshold of the similarity sizers.  [default: the present one]")
def _sizer(
    client: Any,
    name: str,
    sizer: str,
    batch_size: Sizes | None,
    promise: float | None,
    similarity: float | None,
) -> str:
    """Choose the size of whole batches in another way from now on.

    SIZER is one of fixed, schedule, goodput, similarity and similarity_steps. Each sample of an epoch is used
    once all the same. Learning rates follow where the script says how, by scale_lr.
    """
    from idl.errors import InvalidRequestError

    if batch_size is not None and batch_size.most is None:
        raise InvalidRequestError(f"batch_size {batch_size}: give the least and the most, as in 64:4096")
    sizes = None if batch_size is None else (batch_size.least, batch_size.most or batch_size.least)
    said: str = client.set_sizer(name, sizer, sizes, promise, similarity)
    return said


@_command("batch-size", "evenpace job batch-size digits 960")
@click.argument("name", metavar="JOB")
@click.argument("samples", type=click.IntRange(1))
def _batch_size(client: Any, name: str, samples: int) -> str:
    """Have whole batches of so many SAMPLES, over all workers.

    Each sample of an epoch is used once all the same. Learning rates follow where the script says how, by
    scale_lr. Where the manager runs with --scale-batch, it is the size for its --workers.
    """
    said: str = client.set_total_batch_size(name, samples)
    return said


@_command("bounds", "evenpace job bounds digits w2 --minimum 8 --maximum 256 --granularity 8")
@click.argument("name", metavar="JOB")
@click.argument("worker")
@click.option("--minimum", type=click.IntRange(1), help="Samples, at least.  [default: the present one]")
@click.option("--maximum", type=click.IntRange(1), help="Samples, at most.  [default: the present one]")
@click.option("--granularity", type=click.IntRange(1), help="Multiples of it.  [default: the present one]")
def _bounds(
    client: Any, name: str, worker: str, minimum: int | None, maximum: int | None, granularity: int | None
) -> str:
    """Give a WORKER batch sizes between other bounds."""
    from idl.bounds import Bounds
    from idl.errors import InvalidRequestError

    if minimum is None and maximum is None and granularity is None:
        raise click.UsageError("nothing to change: give --minimum, --maximum or --granularity")
    members = {member.worker: member.bounds for member in client.status(name).members}
    if worker not in members:
        raise InvalidRequestError(f"there is no worker {worker!r} in this job")
    present = members[worker]
    bounds = Bounds(
        minimum or present.minimum, maximum or present.maximum, granularity or present.granularity
    )
    said: str = client.set_bounds(name, worker, bounds)
    return said


@_command("drain", "evenpace job drain digits w2")
@click.argument("name", metavar="JOB")
@click.argument("worker")
def _drain(client: Any, name: str, worker: str) -> str:
    """Let a WORKER finish what it was given, then release it: its training loop ends.

    The others take its part from then on. Started again, it joins again.
    """
    said: str = client.drain(name, worker)
    return said


@_command("remove", "evenpace job remove digits w2")
@click.argument("name", metavar="JOB")
@click.argument("worker")
def _remove(client: Any, name: str, worker: str) -> str:
    """Take out a WORKER that is gone, now: for who knows that its machine was given up.

    The others take its part, and another start of it may join at once. If it lives, it ends with an error.
    """
    said: str = client.remove(name, worker)
    return said


@_command("pause", "evenpace job pause digits")
@click.argument("name", metavar="JOB")
def _pause(client: Any, name: str) -> str:
    """Plan nothing more until `evenpace job resume`; what was given is finished, and all wait."""
    said: str = client.pause(name)
    return said


@_command("resume", "evenpace job resume digits")
@click.argument("name", metavar="JOB")
def _resume(client: Any, name: str) -> str:
    """Go on with a paused job."""
    said: str = client.resume(name)
    return said


@job.command("resize")
@example("evenpace job resize digits 3 --drain w2")
@click.option(
    "--drain",
    default="",
    metavar="W1,W2",
    help="Workers that leave first, if any have to.  [default: silent ones, then the slowest]",
)
@click.option(
    "--manager",
    type=PLACES,
    default=None,
    help=f"The BatchSizeManager that runs the job, where it is not on Ray.  [default: {MANAGER}]",
)
@RAY_ADDRESS
@as_client
@click.argument("name", metavar="JOB")
@click.argument("workers", type=click.IntRange(1))
@click.pass_context
def _resize(
    context: click.Context,
    manager: Where | None,
    address: str | None,
    credentials: Credentials | None,
    name: str,
    workers: int,
    drain: str,
) -> None:
    """Have a JOB use so many WORKERS.

    Those that are too many are drained, all at once. Where they are too few, others are awaited: the job goes
    on meanwhile, and they may join at any time. A job on a Ray cluster, which --address tells, uses up to so
    many: more as soon as there are nodes for them.
    """
    drained = [one.strip() for one in drain.split(",") if one.strip()]
    if address is None or manager is not None:
        if context.get_parameter_source("address") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--manager and --address: give the one that runs the job")
        where = PLACES(MANAGER) if manager is None else manager
        click.echo(_ask(where, credentials, lambda client: client.resize(name, workers, drained)))
        return
    if drained:
        raise click.UsageError("--drain: on Ray, the workers with the highest numbers are drained")
    from scheduler.ray import cluster, cluster_scheduler

    token = cluster_token(credentials.token if credentials is not None else None)
    with cluster.connection(address):
        cluster.find(name, cluster_scheduler.running_jobs(token)).resize(workers)
    click.echo(f"job {name} uses up to {workers} {'worker' if workers == 1 else 'workers'} from now on")
