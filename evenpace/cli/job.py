"""`evenpace job`: changes to a running job."""

import functools
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from batchsize_manager.balancing import Balancing
from batchsize_manager.policies import POLICIES
from batchsize_manager.sizers import SIZERS, Sizes, Sizing
from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import MANAGER, RAY_ADDRESS, as_client, cluster_token
from evenpace.cli.settings import PLACES, option
from rpc.credentials import Credentials
from rpc.places import Where

if TYPE_CHECKING:
    from batchsize_manager.client import ManagerClient

_Change = dict[str, Any]  # as `evenpace.job_changes` lists them
_Asks = Callable[["ManagerClient", str], _Change]  # makes a change of what the manager says about a job


def _ask(manager: Where, credentials: Credentials | None, job: str, change: _Change | _Asks) -> None:
    """Have a manager change a job, and print what was done."""
    from batchsize_manager.client import ManagerClient
    from evenpace.job_changes import parse

    with user_mistakes(), ManagerClient(manager, credentials) as client:
        click.echo(parse(change(client, job) if callable(change) else change)(client, job))


@click.group()
def job() -> None:
    """Change a running job: how its batches are split, how large they are, and who takes part.

    A change holds from the first iteration on that nobody has been given yet, and no iteration is lost. With
    `evenpace manager --state` it outlives the manager.
    """


def _command(name: str, values: str) -> Callable[[Callable[..., _Change | _Asks]], Any]:
    """Make a command of a function of its options that returns a change; see `evenpace.job_changes`.

    Args:
        name: The command's name.
        values: What follows the job in the example.
    """

    def add(function: Callable[..., _Change | _Asks]) -> Any:
        @job.command(name)
        @example(f"evenpace job {name} digits {values}".rstrip())
        @click.argument("name", metavar="JOB")
        @click.option(
            "--manager",
            type=PLACES,
            default=MANAGER,
            show_default=True,
            help="The BatchSizeManager that runs the job.",
        )
        @as_client
        @functools.wraps(function)
        def command(name: str, manager: Where, credentials: Credentials | None, **values: Any) -> None:
            _ask(manager, credentials, name, function(**values))

        return command

    return add


@_command("policy", "learned --tolerance 0.05")
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
def _policy(policy: str, predictor: str | None, tolerance: float | None) -> _Change:
    """Split batches by another policy from now on.

    It is one of even, proportional, leader_straggler, learned and overlap. It starts from what is known
    already of the workers' speeds.
    """
    return {"policy": {"policy": policy, "predictor": predictor, "tolerance": tolerance}}


@_command("sizer", "goodput --batch-size 64:4096")
@click.argument("sizer", type=click.Choice(tuple(SIZERS)), metavar="SIZER")
@option(
    Sizing,
    "batch_size",
    None,
    "The least and the most samples of a whole batch.  [default: the present ones]",
)
@option(Sizing, "promise", None, "Share of goodput to be sure of, for a change.  [default: the present one]")
@option(Sizing, "similarity", None, "Threshold of the similarity sizers.  [default: the present one]")
def _sizer(sizer: str, batch_size: Sizes | None, promise: float | None, similarity: float | None) -> _Change:
    """Choose the size of whole batches in another way from now on.

    SIZER is one of fixed, schedule, goodput, similarity and similarity_steps. Each sample of an epoch is used
    once all the same. Learning rates follow where the script says how, by scale_lr.
    """
    from idl.errors import InvalidRequestError

    if batch_size is not None and batch_size.most is None:
        raise InvalidRequestError(f"batch_size {batch_size}: give the least and the most, as in 64:4096")
    sizes = {} if batch_size is None else asdict(batch_size)
    return {"sizer": {"sizer": sizer, "promise": promise, "similarity": similarity, **sizes}}


@_command("batch-size", "960")
@click.argument("samples", type=click.IntRange(1))
def _batch_size(samples: int) -> _Change:
    """Have whole batches of so many SAMPLES, over all workers.

    Each sample of an epoch is used once all the same. Learning rates follow where the script says how, by
    scale_lr. Where the manager runs with --scale-batch, it is the size for its --workers.
    """
    return {"total_batch_size": samples}


@_command("bounds", "w2 --minimum 8 --maximum 256 --granularity 8")
@click.argument("worker")
@click.option("--minimum", type=click.IntRange(1), help="Samples, at least.  [default: the present one]")
@click.option("--maximum", type=click.IntRange(1), help="Samples, at most.  [default: the present one]")
@click.option("--granularity", type=click.IntRange(1), help="Multiples of it.  [default: the present one]")
def _bounds(worker: str, minimum: int | None, maximum: int | None, granularity: int | None) -> _Asks:
    """Give a WORKER batch sizes between other bounds."""
    from idl.errors import InvalidRequestError

    sizes = {"minimum": minimum, "maximum": maximum, "granularity": granularity}
    if not any(sizes.values()):
        raise click.UsageError("nothing to change: give --minimum, --maximum or --granularity")

    def with_present_ones(client: "ManagerClient", name: str) -> _Change:
        present = {member.worker: member.bounds for member in client.status(name).members}
        if worker not in present:
            raise InvalidRequestError(f"there is no worker {worker!r} in this job")
        filled = {size: given or getattr(present[worker], size) for size, given in sizes.items()}
        return {"bounds": {"worker": worker, **filled}}

    return with_present_ones


@_command("drain", "w2")
@click.argument("worker")
def _drain(worker: str) -> _Change:
    """Let a WORKER finish what it was given, then release it: its training loop ends.

    The others take its part from then on. Started again, it joins again.
    """
    return {"drain": {"worker": worker}}


@_command("remove", "w2")
@click.argument("worker")
def _remove(worker: str) -> _Change:
    """Take out a WORKER that is gone, now: for who knows that its machine was given up.

    The others take its part, and another start of it may join at once. If it lives, it ends with an error.
    """
    return {"remove": {"worker": worker}}


@_command("pause", "")
def _pause() -> _Change:
    """Plan nothing more until `evenpace job resume`; what was given is finished, and all wait."""
    return {"paused": True}


@_command("resume", "")
def _resume() -> _Change:
    """Go on with a paused job."""
    return {"paused": False}


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
        _ask(where, credentials, name, {"resize": {"workers": workers, "drain": drained}})
        return
    if drained:
        raise click.UsageError("--drain: on Ray, the workers with the highest numbers are drained")
    from scheduler.ray import cluster, cluster_scheduler

    token = cluster_token(credentials.token if credentials is not None else None)
    with cluster.connection(address):
        cluster.find(name, cluster_scheduler.running_jobs(token)).resize(workers)
    click.echo(f"job {name} uses up to {workers} {'worker' if workers == 1 else 'workers'} from now on")
