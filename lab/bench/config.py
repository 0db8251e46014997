"""The configurations of the benchmarks: values that check themselves, and import little."""

from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated

import numpy as np

from batchsize_manager.config import TOLERANCE
from batchsize_manager.policies import POLICIES, Tolerance
from evenpace.local.fields import Limit
from idl.errors import InvalidRequestError
from idl.settings import Checked, Setting, check_settings
from lab.fields import ImageData, Repeats, Seed, Shares, parse_names, whole_numbers
from predictors import Array

_SPIKE = 3.0  # factor on a worker's time in a spike
_sizes = partial(whole_numbers, "sizes", least=1)


def _read_shares(name: str, allowed: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise InvalidRequestError(f"{name} {text!r}: give shares {allowed}, as in 0.7,0.3") from None


Silence = Annotated[
    float | None,
    Setting(
        "Seconds of silence after which Ray gives up a node.  [default: Ray's own setting]",
        least=0.1,
        below=inf,
    ),
]
"""When Ray takes a node for dead."""


@dataclass(frozen=True)
class RecoveryConfig(Checked):
    """The configuration of `evenpace lab bench recovery`.

    Raises:
        InvalidRequestError: A value is out of its range.
    """

    workers: Annotated[int, Setting("Of the job.", least=2)] = 3
    shards: Annotated[int, Setting("Of the parameter server.", least=1)] = 2
    away: Annotated[
        float,
        Setting(
            "Seconds after which a killed process is started again, or one that vanished is back.", least=0
        ),
    ] = 1.0
    checkpoint_every: Annotated[int, Setting("Versions, at a shard.", least=1)] = 20
    repeats: Repeats = 3
    # What happens, by their names in `lab.bench.recovery.EVENTS`, in this order; all if empty.
    events: tuple[str, ...] = ()


GROUP_CHANGES = ("join", "drain", "kill", "kill-while-forming")
"""Changes to a group of workers, from its own joining to deaths of members."""


@dataclass(frozen=True)
class GroupChangesConfig:
    """The configuration of `evenpace lab bench recovery --with all-reduce`.

    Raises:
        InvalidRequestError: A value is out of its range, or the batch has no equal parts.
    """

    workers: Annotated[int, Setting("Of the job.", least=2, most=16)] = 3
    # Elements of the models, in float32, one after the other.
    parameters: Annotated[
        tuple[int, ...],
        Setting(
            "With all-reduce: elements of the model; several are measured one after the other.",
            metavar="COUNT,...",
            read=partial(whole_numbers, "parameters", least=8),
        ),
    ] = (10_000_000,)
    batch_size: Annotated[int, Setting("With all-reduce: samples, a multiple of the workers.", least=1)] = 48
    turns: Annotated[
        int, Setting("With all-reduce: turns of 10 iterations beside those of stock DDP; 0: none.", least=0)
    ] = 10
    # By their names in `GROUP_CHANGES`, in this order.
    changes: Annotated[
        tuple[str, ...],
        Setting(
            f"With all-reduce: those that are measured, of {', '.join(GROUP_CHANGES)}.",
            metavar="CHANGE,...",
            read=parse_names,
        ),
    ] = GROUP_CHANGES
    repeats: Repeats = 3

    def __post_init__(self) -> None:
        check_settings(self)
        if unknown := sorted(set(self.changes) - set(GROUP_CHANGES)):
            raise InvalidRequestError(f"changes {', '.join(unknown)}: there are {', '.join(GROUP_CHANGES)}")
        if self.batch_size % self.workers:
            raise InvalidRequestError(
                f"batch size {self.batch_size}: must be a multiple of the {self.workers} workers"
            )


@dataclass(frozen=True)
class NodesConfig(Checked):
    """The configuration of `evenpace lab bench nodes` (InvalidRequestError: a value is out of its range)."""

    # What is lost, by their names in `lab.bench.node_losses.LOSSES`, in this order; all if empty.
    losses: Annotated[
        tuple[str, ...],
        Setting(
            "What is killed: worker, shard, manager, controller, head.  [default: all]",
            metavar="KIND,...",
            read=parse_names,
        ),
    ] = ()
    workers: Annotated[int, Setting("Of the job.", least=2, most=16)] = 2
    shards: Annotated[int, Setting("Of the parameter server.", least=1, most=8)] = 2
    checkpoint_every: Annotated[int, Setting("Versions, at a shard.", least=1)] = 20
    pause: Annotated[float, Setting("Seconds that each iteration takes longer.", least=0, below=inf)] = 0.05
    silence: Silence = None
    repeats: Repeats = 3


@dataclass(frozen=True)
class SpotConfig(Checked):
    """The configuration of `evenpace lab bench spot` (InvalidRequestError: a value is out of its range)."""

    # CSV file of a market, with the columns time_s, event ("join" or "loss") and node.
    trace: Annotated[
        Path,
        Setting(
            "Nodes that join and are lost: a CSV file of time_s, event, node.", exists=True, folder=False
        ),
    ]
    nodes: Annotated[
        int, Setting("At most: of the trace, nodes beyond these are left out.", least=1, most=16)
    ] = 4
    minutes: Annotated[float, Setting("In which the trace is replayed.", above=0, below=inf)] = 10.0
    notice: Annotated[
        float,
        Setting("Seconds before a loss at which it is announced; 0 for none.", least=0, below=inf),
    ] = 10.0
    per_sample: Annotated[
        float, Setting("Seconds that a sample takes on each node; batches are of 96.", above=0, below=inf)
    ] = 0.04
    shards: Annotated[int, Setting("Of the parameter server.", least=1, most=8)] = 1
    silence: Silence = None


@dataclass(frozen=True)
class SizesConfig:
    """The configuration of `evenpace lab bench sizes` (ValueError: a value is not allowed)."""

    workers: Annotated[int, Setting("Of the job.", least=1, most=32)] = 2
    # Two sizes of the whole batch, so near each other that their iterations take as long.
    sizes: Annotated[
        tuple[int, ...],
        Setting("Two, of the whole batch.", metavar="SAMPLES,SAMPLES", read=_sizes),
    ] = (64, 66)
    batches: Annotated[int, Setting("Of an epoch, all of them whole.", least=2)] = 4  # batches of an epoch
    epochs: Annotated[int, Setting("The size changes before every second; a multiple of 4.", least=16)] = 200
    lookahead: Annotated[int, Setting("Of the trainings with one.", least=1)] = 2
    repeats: Repeats = 5  # trainings of each kind

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.sizes) != 2 or not 1 <= min(self.sizes) < max(self.sizes):
            raise ValueError(f"sizes {self.sizes}: must be two different numbers, of at least 1")
        least, most = sorted(self.sizes)
        if self.batches * (most - least) >= least:
            raise ValueError(
                f"sizes {self.sizes}: differ too much for epochs of {self.batches} batches of either size; "
                f"the larger one must be below {least + least / self.batches:g}"
            )
        if self.epochs % 4:
            raise ValueError(f"epochs {self.epochs}: must be a multiple of 4")
        if self.lookahead >= self.batches:
            raise ValueError(
                f"lookahead {self.lookahead}: must be below {self.batches}, the batches of an epoch"
            )


@dataclass(frozen=True)
class ShardsConfig:
    """The configuration of `evenpace lab bench ps` (ValueError: a number is out of its range)."""

    # How many shards the parameters are spread over, one measurement for each.
    shards: tuple[int, ...] = (1, 2, 4)
    # Workers that push, and pull, at the same time.
    workers: Annotated[int, Setting("With --shards: all push, and pull, at once.", least=1, most=100)] = 3
    # Size of the parameters, and of each gradient, in MiB.
    mib: Annotated[int, Setting("Size of the gradient.", least=1, most=1900)] = 100
    # Bandwidth of each shard's link, in MB/s each way.
    rate: Annotated[float, Setting("With --shards: MB/s of each link, each way.", above=0, below=1e5)] = 100.0
    repeats: Repeats = 9  # measured rounds, after one that does not count

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.shards or not 1 <= min(self.shards) <= max(self.shards) <= 100:
            raise ValueError(f"shards {self.shards}: must be one or more numbers from 1 to 100")

    def ideal(self, shards: int) -> float:
        """Seconds in which links that carry nothing else could bring all of it."""
        return self.workers * self.mib * 2**20 / (shards * self.rate * 1e6)


@dataclass(frozen=True)
class OverlapConfig(Checked):
    """The configuration of `evenpace lab bench overlap`.

    Attributes:
        compute: Seconds that a worker computes in an iteration; 0 for as long as transfers take where
            the step makes them all.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    workers: Annotated[int, Setting("Of the job.", least=1, most=100)] = 2
    shards: Annotated[int, Setting("Each behind a link of --rate.", least=1, most=100)] = 2
    layers: Annotated[int, Setting("Of the model, with 2 MiB of parameters each.", least=1)] = 20
    # Of each link; 0: without a limit.
    rate: Annotated[
        float, Setting("MB/s of each link, each way; 0: without a limit.", least=0, below=1e5)
    ] = 100.0
    compute: Annotated[
        float,
        Setting(
            "Seconds of computing in an iteration; 0: as transfers take where the step makes them all.",
            least=0,
            below=inf,
        ),
    ] = 0.0
    iterations: Annotated[int, Setting("Timed at once; the median of the last half counts.", least=2)] = 24
    repeats: Repeats = 3


@dataclass(frozen=True)
class LoadConfig:
    """The load of `evenpace lab bench load` (InvalidRequestError: a value is not allowed)."""

    jobs: Annotated[int, Setting("Jobs at once.", least=1)] = 10
    workers: Annotated[int, Setting("Of each job.", least=1)] = 100  # workers of each job
    seconds: Annotated[float, Setting("In place of minutes.", least=1, below=inf)] = 60.0  # how long it lasts
    compute: Annotated[
        float,
        Setting(
            "Seconds from an answer to the next report; 0: at once, so that the manager is never idle.",
            least=0,
            below=inf,
        ),
    ] = 0.0
    generators: Annotated[
        int,
        Setting(
            "Processes that the workers are spread over.  [default: one less than there are CPUs]", least=1
        ),
    ] = 1
    seed: Annotated[int, Setting("Of the workers' speeds.", least=0)] = 0
    manager_options: tuple[str, ...] = ()  # more options of `evenpace manager`

    def __post_init__(self) -> None:
        check_settings(self)
        if self.generators > self.workers:
            raise InvalidRequestError(
                f"generators {self.generators}: must be at most the workers, {self.workers}"
            )

    @property
    def connections(self) -> int:
        """One for each worker."""
        return self.jobs * self.workers

    @property
    def names(self) -> tuple[str, ...]:
        """The jobs'."""
        return tuple(f"load-{number}" for number in range(self.jobs))


@dataclass(frozen=True)
class MicroBatchesConfig(Checked):
    """The configuration of `evenpace lab bench micro-batches`.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    # Micro-batches of an iteration, for times.
    number: Annotated[int, Setting("Micro-batches of an iteration.", least=1)] = 16
    # Iterations that are timed, each by both in turn.
    iterations: Annotated[int, Setting("Of each kind; medians are over these.", least=1)] = 15
    # Micro-batches of an iteration, for memory.
    numbers: Annotated[
        tuple[int, ...],
        Setting(
            "Micro-batches of an iteration, for memory.",
            name="memory",
            metavar="COUNT,...",
            read=partial(whole_numbers, "memory", least=1),
        ),
    ] = (1, 4, 16, 64)


@dataclass(frozen=True)
class TrainConfig:
    """The configuration of `evenpace lab bench train` (InvalidRequestError: a value is not allowed)."""

    shares: Shares = (0.8, 0.4, 0.2, 0.1)
    data: ImageData = "digits"
    hidden: Annotated[
        tuple[int, ...],
        Setting(
            "Units of further layers, the first of 2,048 inputs for digits.",
            metavar="UNITS,...",
            read=partial(whole_numbers, "hidden", least=1),
        ),
    ] = ()
    samples: Annotated[int | None, Setting("Train on the first so many images.  [default: all]", least=1)] = (
        None
    )
    rate: Annotated[
        float, Setting("MB/s of each worker's link, each way; 0: without a limit.", least=0, below=1e5)
    ] = 0.0
    bucket_mb: Annotated[
        float, Setting("MiB of a DDP's buckets (`bucket_cap_mb`), stock or not.", above=0, below=1e5)
    ] = 25.0
    policy: Annotated[
        str | None, Setting("Policy of evenpace's trainings.  [default: the manager's]", choices=POLICIES)
    ] = None
    # Passes over the data; each leaves its last, smaller batch out.
    epochs: Annotated[int, Setting("Passes over the data.", least=1)] = 15
    # Samples of a batch, over all workers; a multiple of their number.
    total_batch_size: Annotated[int, Setting("Over all workers.", name="batch-size", least=1)] = 716
    repeats: Repeats = 3
    # From 0 to 1; the time until an epoch ends with it is printed.
    target_accuracy: Annotated[float, Setting("On the test set.", least=0, most=1)] = 0.9
    seed: Seed = 1
    limit_kind: Limit = "auto"

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.shares) < 2:
            raise InvalidRequestError(f"shares {self.shares}: give at least two workers")
        if self.total_batch_size % len(self.shares):
            raise InvalidRequestError(
                f"batch size {self.total_batch_size}: must be a multiple of {len(self.shares)}, the workers, "
                f"since stock DDP takes the plain mean over them"
            )


@dataclass(frozen=True)
class Change:
    """Change of a worker's speed: from an iteration on, its times are `factor` times the measured ones."""

    iteration: int
    worker: str
    factor: float

    def __post_init__(self) -> None:
        if self.iteration < 1:
            raise ValueError(f"change in iteration {self.iteration}: must be at least 1")
        if not 0 < self.factor < float("inf"):
            raise ValueError(f"change by the factor {self.factor}: must be above 0")


@dataclass(frozen=True)
class Noise(Checked):
    """Noise on the true times, from which the measured ones follow."""

    # Relative standard deviation.
    deviation: Annotated[float, Setting("Relative deviation of a time.", name="noise", least=0, below=1)] = (
        0.03
    )
    # Share of iterations in which a worker takes three times as long.
    spikes: Annotated[float, Setting("Share of times that are three times as long.", least=0, most=1)] = 0.0
    seed: Annotated[int, Setting("Of the noise; the first.", least=0)] = 0  # seed of both

    def factors(self, iterations: int, workers: int) -> Array:
        """Return factors on the true times, (iterations, workers); the same for every policy."""
        random = np.random.default_rng(self.seed)
        factors = np.maximum(0.1, random.normal(1.0, self.deviation, (iterations, workers)))
        spiked: Array = np.where(random.random((iterations, workers)) < self.spikes, _SPIKE, 1.0) * factors
        return spiked


@dataclass(frozen=True)
class BalanceConfig:
    """The configuration of `evenpace lab bench balance`.

    Attributes:
        links: Seconds of the workers' transfers with a parameter server, of one after the other, as shares of
            that time.

    Raises:
        InvalidRequestError: A number is out of its range, or there are both an all-reduce and links.
    """

    # A file for `read_step_times`; None for made-up ones.
    curves: Annotated[
        Path | None,
        Setting("CSV: model,gpu,batch_size,step_time_s (or examples_per_s).  [default: made-up curves]"),
    ] = None
    # Names; all if empty.
    policies: Annotated[tuple[str, ...], Setting("May be repeated.", name="policy", choices=POLICIES)] = ()
    # If empty, all that were measured on several GPUs.
    models: Annotated[
        tuple[str, ...],
        Setting("May be repeated.  [default: all measured on several GPUs]", name="model"),
    ] = ()
    # GPUs of each cluster; one of each that the model was measured on, if empty.
    gpus: Annotated[
        tuple[str, ...],
        Setting(
            "Of the cluster; the same one may come twice.  [default: each that the model was measured on]",
            metavar="GPU,...",
            read=parse_names,
        ),
    ] = ()
    # Samples of the whole batch; half of what fits into memory, if empty.
    totals: Annotated[
        tuple[int, ...],
        Setting(
            "Samples of the whole batch; may be repeated.  [default: half of what fits into memory]",
            name="total",
            least=1,
        ),
    ] = ()
    iterations: Annotated[int, Setting("Of each run.", least=2)] = 300
    noise: Noise = field(default_factory=Noise)  # noise of the first seed
    seeds: Annotated[int, Setting("Runs of each policy.", least=1)] = 1  # how many seeds there are
    # If None, the worker with most samples in the best split takes twice as long from the middle on.
    changes: tuple[Change, ...] | None = None
    tolerance: Tolerance = TOLERANCE  # see `PolicyOptions`
    # Seconds of the reductions, as a share of the best split's time without them.
    all_reduce: Annotated[
        float,
        Setting(
            "Time of an all-reduce that overlaps with the backward pass, over that of the best split without "
            "it; 0: none.",
            least=0,
            below=inf,
        ),
    ] = 0.0
    links: Annotated[
        tuple[float, ...],
        Setting(
            "Times of transfers with a parameter server, over that of the best split without them, of each "
            "worker in turn; half of each is the push, which overlaps with the backward pass.  "
            "[default: none]",
            metavar="SHARE,...",
            read=partial(_read_shares, "links", "above 0"),
        ),
    ] = ()
    # Buckets that are reduced or pushed one after the other.
    buckets: Annotated[
        int, Setting("With --all-reduce and --links: buckets of gradients.", least=1, most=1000)
    ] = 8
    # Shares of the workers' steps that are the backward pass, of one after the other.
    backward: Annotated[
        tuple[float, ...],
        Setting(
            "With --all-reduce and --links: shares of a step that are the backward pass, of each worker in "
            "turn; the rest is the forward pass, and loading.",
            metavar="SHARE,...",
            read=partial(_read_shares, "backward", "above 0 and below 1"),
        ),
    ] = (0.7, 0.3)
    # Samples of a micro-batch; None for jobs without.
    micro_batch: Annotated[
        int | None,
        Setting(
            "Samples of a micro-batch, of which workers compute one after the other.  [default: none]",
            least=1,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.backward or not all(0 < share < 1 for share in self.backward):
            raise InvalidRequestError(f"backward {self.backward}: must be shares above 0 and below 1")
        if not all(0 < share < inf for share in self.links):
            raise InvalidRequestError(f"links {self.links}: must be shares above 0")
        if self.links and self.all_reduce:
            raise InvalidRequestError(
                f"all_reduce {self.all_reduce} and links {self.links}: gradients meet in one of the two ways"
            )
