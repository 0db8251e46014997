"""The configurations of the experiments: values that check themselves, and import little."""

from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from batchsize_manager.config import TOLERANCE
from batchsize_manager.policies import POLICIES, Tolerance
from batchsize_manager.sizers import SIZERS
from evenpace.local.fields import Limit, parse_shares
from idl.errors import InvalidRequestError
from idl.settings import Checked, Setting, check_settings
from lab.experiments.contention_schedule import Disturbance
from lab.experiments.mappings import MAPPINGS
from lab.fields import Folder, Seed, Shards, Shares, parse_names, whole_numbers
from predictors import PredictorOptions
from worker.learning_rates import factor_by

UnequalShares = Annotated[
    tuple[float, ...],
    Setting(
        "The CPU share of each worker: unequal shares stand for unequal GPUs.",
        metavar="CORES,...",
        read=parse_shares,
    ),
]
"""Cores that each worker may use."""


@dataclass(frozen=True, kw_only=True)
class ContendedOptions:
    """The options of an experiment under contention (InvalidRequestError: a value is not allowed)."""

    out: Folder
    shares: Shares = (0.35, 0.35, 0.35, 0.35)
    iterations: Annotated[int, Setting("Of each worker.", least=20)] = 300
    # First iterations, which are left out of means and errors.
    settle: Annotated[int, Setting("First iterations, left out of means and errors.", least=0)] = 5
    # Samples of an iteration, over all workers; None for what suits the workload.
    batch_size: Annotated[int | None, Setting("Over all workers.  [default: by workload]", least=1)] = None
    disturbance: Disturbance = field(default_factory=Disturbance)
    seed: Seed = 1  # seed of who is disturbed
    learning: PredictorOptions = field(default_factory=lambda: PredictorOptions(first_fit=100))
    # Models to start predictors from: a file or a folder.
    reuse: Annotated[
        Path | None, Setting("Start predictors from kept models: a file, or a folder of them.", exists=True)
    ] = None
    tolerance: Tolerance = TOLERANCE
    # Accuracy for the time and updates to it; None for 98% of what BSP ends with.
    target: Annotated[
        float | None, Setting("Accuracy that is to be reached.  [default: 98% of BSP's]", least=0, most=1)
    ] = None
    # What a worker's shares of memory in the schedule refer to.
    memory_bytes: Annotated[
        int,
        Setting("What a schedule's shares of memory refer to.", name="memory-mib", least=1, unit=2**20),
    ] = 256 * 2**20
    limit_kind: Limit = "auto"
    # Whether each part runs in a container, instead of being a process of this machine.
    containers: Annotated[bool, Setting("Run each part in a container; see docs/containers.md.")] = False
    shards: Shards = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if self.settle > self.iterations - 2:
            raise InvalidRequestError(
                f"settle {self.settle}: must leave at least two of {self.iterations} iterations"
            )


@dataclass(frozen=True, kw_only=True)
class CoordinationConfig:
    """The configuration of all jobs of Figures 6 and 7.

    Raises:
        InvalidRequestError: A value is not allowed, there is no seed, or one twice.
    """

    out: Folder
    shares: UnequalShares = (0.6, 0.4, 0.25, 0.15)
    # The part of a run, from 0 to below 1, that the hardware efficiency leaves out.
    settle: Annotated[
        float,
        Setting(
            "First part of a run, left out of the time per update: LB-BSP starts from an even split.",
            least=0,
            below=1,
        ),
    ] = 0.5
    # Seeds of first parameters and of the samples' order, each in a run of its own.
    seeds: Annotated[
        tuple[int, ...],
        Setting("A run with each; means.", metavar="SEED,...", read=partial(whole_numbers, "seeds", least=0)),
    ] = (1,)
    limit_kind: Limit = "auto"
    shards: Shards = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InvalidRequestError(
                f"seeds {', '.join(map(str, self.seeds))}: give at least one, each once"
            )


@dataclass(frozen=True)
class BandwidthCut(Checked):
    """A bandwidth that is cut (InvalidRequestError: a value is out of its range)."""

    # The worker's rank.
    worker: Annotated[int, Setting("From 0.", name="cut-worker", metavar="RANK", least=0)] = 1
    # Finished iterations after which it is cut.
    iteration: Annotated[
        int, Setting("Iteration.  [default: the middle of the run]", name="cut-at", least=1)
    ] = 150
    # What is left, in megabits per second, each way.
    mbit: Annotated[
        float,
        Setting("What is left of the bandwidth, each way.", name="cut-to", metavar="MBIT/S", above=0),
    ] = 100.0


@dataclass(frozen=True, kw_only=True)
class MappingConfig:
    """The configuration of trainings on many mappings of micro-batches onto workers.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    out: Folder
    # Names of mappings, in this order.
    mappings: Annotated[
        tuple[str, ...],
        Setting("Mappings to train under.", metavar="NAME,...", choices=MAPPINGS, read=parse_names),
    ] = tuple(MAPPINGS)
    iterations: Annotated[int, Setting("Of each training.", least=1)] = 20
    batch_size: Annotated[int, Setting("Over all workers.", least=1)] = 48
    micro_batch: Annotated[int, Setting("Samples of a micro-batch.", least=1)] = 4
    dtype: Annotated[
        Literal["float64", "float32"], Setting("In float32, rounding differs with the mapping.")
    ] = "float64"
    exact: Annotated[bool, Setting("Sum exactly: all mappings end with the same bits.")] = False
    dropout: Annotated[float, Setting("Probability that a unit is dropped.", least=0, below=1)] = 0.2
    # Learning rate; a large one amplifies rounding errors.
    lr: Annotated[float, Setting("Learning rate.", above=0, below=inf)] = 0.001
    samples: Annotated[int, Setting("First samples of the data, to train on.", least=1)] = 250
    test_samples: Annotated[int, Setting("First samples of the test data.", least=1)] = 500
    seed: Seed = 1
    shards: Shards = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if self.micro_batch > self.batch_size:
            raise InvalidRequestError(
                f"micro-batch {self.micro_batch}: must be at most the batch size, {self.batch_size}"
            )


@dataclass(frozen=True, kw_only=True)
class MigrationConfig(Checked):
    """The configuration of Figure 8 (InvalidRequestError: a value is not allowed)."""

    policy: Annotated[str, Setting("Of the balanced run.", choices=POLICIES)] = "leader_straggler"
    # Computing takes long enough for the default cut to be bearable.
    shares: UnequalShares = (0.24, 0.16, 0.1, 0.06)
    iterations: Annotated[int, Setting("Of each training.", least=20)] = 300
    batch_size: Annotated[int, Setting("Over all workers.", least=1)] = 256
    cut: BandwidthCut = field(default_factory=BandwidthCut)
    limit_kind: Limit = "auto"
    shards: Shards = 1
    out: Folder


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """The configuration of drawn gradients, from which their noise is estimated.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    # Samples of each contribution to an iteration.
    batches: Annotated[
        tuple[int, ...],
        Setting(
            "Samples of each worker.", metavar="SIZE,...", read=partial(whole_numbers, "batches", least=1)
        ),
    ] = (8, 16, 32, 200)
    # Whole batches of which two halves are compared, in samples.
    halved: Annotated[
        tuple[int, ...],
        Setting(
            "Whole batches to halve.", metavar="SIZE,...", read=partial(whole_numbers, "halved", least=2)
        ),
    ] = (16, 64, 256)
    draws: Annotated[int, Setting("Iterations that are drawn.", least=2)] = 40_000
    dimensions: Annotated[int, Setting("Elements of a gradient.", least=1)] = 100
    # |G|, of the true gradient.
    norm: Annotated[float, Setting("Norm of the true gradient.", above=0, below=inf)] = 3.0
    # Σ, of each element of one sample's gradient.
    deviation: Annotated[
        float, Setting("Deviation of each element of a sample's gradient.", above=0, below=inf)
    ] = 0.5
    seed: Annotated[int, Setting("Seed of the draws.", least=0)] = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.batches) < 2 or min(self.batches) < 1:
            raise InvalidRequestError(f"batches {self.batches}: give at least two, of a sample or more")
        if any(size < 2 or size % 2 for size in self.halved):
            raise InvalidRequestError(f"halved {self.halved}: give even numbers of samples, from 2")


@dataclass(frozen=True)
class NoiseTrainingConfig:
    """The configuration of a training whose gradient noise is estimated, beside drawn gradients.

    Raises:
        ValueError: A value is not allowed.
    """

    # The data set, as `lab.data.load` names it; None: nothing is trained.
    train: Annotated[
        str | None,
        Setting("Train on this data set, too: digits, mnist:DIR or cifar10:DIR (CifarNet).", metavar="DATA"),
    ] = None
    iterations: Annotated[int, Setting("Iterations of the training.", least=1)] = 500
    every: Annotated[int, Setting("Iterations from one look at the truth to the next.", least=1)] = 100
    samples: Annotated[int, Setting("Samples' gradients that the truth is from.", least=2)] = 1000
    looks: Annotated[
        int, Setting("Batches that are drawn at each look, for the estimators' errors.", least=2)
    ] = 100
    rate: Annotated[float, Setting("Learning rate.", above=0, below=inf)] = 0.01
    batch_norm: Annotated[
        bool, Setting("Train with batch normalisation over each worker's samples; digits or MNIST.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.batch_norm and (self.train or "").startswith("cifar10"):
            raise InvalidRequestError("batch-norm: only for digits and MNIST; CifarNet has none")


@dataclass(frozen=True)
class ForecastConfig(Checked):
    """The configuration of forecasts of measured noise scales (ValueError: a value is not allowed)."""

    # Folder with a folder for each model, of files `validation-M.csv`.
    data: Annotated[
        Path,
        Setting("Folder of MODEL/validation-M.csv: a row an epoch.", folder=True),
    ]
    # Epochs from the last one known to the one that is forecast.
    horizons: Annotated[
        tuple[int, ...],
        Setting("Epochs ahead.", metavar="EPOCHS,...", read=partial(whole_numbers, "horizons", least=1)),
    ] = (1, 5)
    every: Annotated[int, Setting("Epochs from one forecast to the next.", least=1)] = 5


@dataclass(frozen=True)
class SizersConfig:
    """The configuration of trainings with batches of each sizer's size.

    Raises:
        ValueError: A value is not allowed.
    """

    # The data set, as `lab.data.load` names it.
    data: Annotated[str, Setting("digits, mnist:DIR or cifar10:DIR.", metavar="DATA")] = "digits"
    # A sizer and a rule of learning rates each, as SIZER:RULE; all are compared with the first.
    runs: Annotated[
        tuple[str, ...],
        Setting("Sizer and rule of learning rates.", metavar="SIZER:RULE,...", read=parse_names),
    ] = ("fixed:none", "goodput:adascale", "goodput:none")
    workers: Annotated[int, Setting("Number of workers.", least=1)] = 2
    policy: Annotated[str, Setting("Balancing policy.", choices=POLICIES)] = "learned"
    batch_size: Annotated[int, Setting("Samples of the first batch, and the least.", least=1)] = 32
    most: Annotated[int, Setting("Samples of a batch at most.", least=1)] = 512
    loss: Annotated[float, Setting("Loss over all samples that ends a training.", above=0, below=inf)] = 0.05
    epochs: Annotated[int, Setting("Epochs at most.", least=1)] = 3000
    # Learning rate for batches of `batch_size`.
    rate: Annotated[float, Setting("Learning rate of the first batch.", above=0, below=inf)] = 0.05
    seeds: Annotated[
        tuple[int, ...],
        Setting(
            "A run with each; medians.", metavar="SEED,...", read=partial(whole_numbers, "seeds", least=0)
        ),
    ] = (1,)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.most < self.batch_size:
            raise InvalidRequestError(f"most {self.most}: must be at least batch_size, {self.batch_size}")
        for one in self.runs:
            sizer, _, rule = one.partition(":")
            if sizer not in SIZERS or sizer == "schedule":
                known = ", ".join(name for name in SIZERS if name != "schedule")
                raise InvalidRequestError(f"runs {one!r}: give SIZER:RULE, with a sizer of {known}")
            factor_by(rule, "sgd")  # raises InvalidRequestError

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Sizer and rule of each run."""
        return [(sizer, rule) for sizer, _, rule in (one.partition(":") for one in self.runs)]
